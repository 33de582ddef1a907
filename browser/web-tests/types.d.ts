// Names that exist only in Firefox's own windows, where the harness evaluates some functions.

declare const ChromeUtils: { importESModule(url: string): any };
declare const WebExtensionPolicy: { getByID(id: string): any };
