// Perfetto's trace processor under Node: requests of its protocol come in, its replies go out.
//
//     node trace_processor.cjs FOLDER < requests > replies
//
// FOLDER has engine_bundle.js and the WebAssembly beside it, as every build of Perfetto's pages does.  The engine
// is made for a worker of a browser: what such a worker has and Node has not is given to it here.
"use strict";
const fs = require("fs"), path = require("path");
const folder = process.argv[2];

class FileRequest {
  open(_, name) { this.name = name; }
  send() { this.response = fs.readFileSync(path.join(folder, path.basename(this.name))); }
}

const self = { location: { href: "" } };
const given = { self, WorkerGlobalScope: class {}, XMLHttpRequest: FileRequest, process: undefined };
console.log = console.warn = console.error; // replies alone go out
const engine = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function(...Object.keys(given), engine)(...Object.values(given));

const port = { postMessage: reply => fs.writeSync(1, reply) };
self.onmessage({ data: port });
setTimeout(() => port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) }));
