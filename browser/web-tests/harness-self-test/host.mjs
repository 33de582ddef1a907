#!/usr/bin/env node
// A native host that answers every message with the same message and its process id.

let buffer = Buffer.alloc(0);

process.stdin.on("data", (chunk) => {
    buffer = Buffer.concat([buffer, chunk]);
    while (buffer.length >= 4) {
        const end = 4 + buffer.readUInt32LE(0);
        if (buffer.length < end) break;
        const message = JSON.parse(buffer.subarray(4, end).toString("utf8"));
        buffer = buffer.subarray(end);
        send({ ...message, pid: process.pid, args: process.argv.slice(2) });
    }
});
process.stdin.on("end", () => process.exit(0));

/** @param {object} message */
function send(message) {
    const body = Buffer.from(JSON.stringify(message));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(body.length);
    process.stdout.write(Buffer.concat([length, body]));
}
