// The stub extension and the stub host, for the harness's own tests.

import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));

export const pages = HERE;

export async function options() {
    return {
        extension: path.join(HERE, "extension"),
        host: {
            name: "bigbird_stub",
            command: process.execPath,
            args: [path.join(HERE, "host.mjs"), "--from-the-launcher"],
        },
    };
}
