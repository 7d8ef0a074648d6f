"""An object store on this machine that TensorFlow takes for Google Cloud Storage.

python fake_bucket.py FOLDER CERTIFICATE ADDRESS

It listens on port 443 and speaks the part of the JSON interface that TensorFlow's file system uses.
An object is a file of the folder, of a quoted name: `gs://b/m/a.txt` is `b/m%2Fa.txt`. What was
asked for is a line each of `FOLDER.requests`.
"""

import http.server
import json
import re
import ssl
import sys
import threading
import urllib.parse
from pathlib import Path

_OBJECT = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)")
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)")


def path_of(folder: Path, address: str) -> Path:
    """The file that holds an object `gs://BUCKET/NAME`."""
    bucket, _, name = address.removeprefix("gs://").partition("/")
    return folder / bucket / urllib.parse.quote(name, safe="")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    uploads: dict
    lock: threading.Lock

    def do_GET(self):
        path, query = self._asked()
        if self.headers["Host"].startswith("storage."):
            return self._bytes(urllib.parse.unquote(path).lstrip("/"))
        if found := _OBJECT.fullmatch(path):
            return self._about(*found.groups())
        if path.endswith("/o"):
            return self._list(path.split("/")[4], query)
        return self._answer({"location": "US"})

    def do_POST(self):
        path, query = self._asked()
        if found := _REWRITE.fullmatch(path):
            source, name, target, new = found.groups()
            content = (self.folder / source / name).read_bytes()
            self._put(self.folder / target / new, content)
            return self._answer({"done": True})
        name = self.folder / path.split("/")[5] / urllib.parse.quote(query["name"], safe="")
        if query["uploadType"] == "media":
            self._put(name, self._body)
            return self._answer({"name": name.name})
        with self.lock:
            number = str(len(self.uploads))
            self.uploads[number] = name, b""
        return self._answer({}, Location=f"https://www.googleapis.com/upload/{number}")

    def do_PUT(self):
        path, _ = self._asked()
        number = path.rpartition("/")[2]
        name, before = self.uploads[number]
        content = before + self._body
        self.uploads[number] = name, content
        # TensorFlow gives no range with an object of no bytes, such as a log without a line yet.
        total = (self.headers["Content-Range"] or "/0").rpartition("/")[2]
        if total == "*" or len(content) < int(total):
            return self._answer({}, 308, Range=f"bytes=0-{len(content) - 1}")
        self._put(name, content)  # only now it is there
        return self._answer({"name": name.name})

    def do_DELETE(self):
        path, _ = self._asked()
        bucket, name = _OBJECT.fullmatch(path).groups()
        try:
            (self.folder / bucket / name).unlink()
        except FileNotFoundError:
            return self._answer({}, 404)
        return self._answer({}, 204)

    def _asked(self):
        """The path of the request and its query."""
        chunked = self.headers["Transfer-Encoding"] == "chunked"
        self._body = self._chunks() if chunked else self._read(self.headers["Content-Length"] or 0)
        address = urllib.parse.urlsplit(self.path)
        kept = self.headers["Range"] or self.headers["Content-Range"] or ""
        with self.lock, self.folder.with_name(f"{self.folder.name}.requests").open("a") as file:
            file.write(f"{self.client_address[0]} {self.command} {self.path} {kept}\n")
        return address.path, dict(urllib.parse.parse_qsl(address.query))

    def _read(self, size):
        return self.rfile.read(int(size))

    def _chunks(self):
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _put(self, path, content):
        aside = path.with_name("%aside")
        with self.lock:
            aside.write_bytes(content)
            aside.rename(path)

    def _bytes(self, address):
        path = path_of(self.folder, address)
        if not path.exists():
            return self._answer({}, 404)
        content = path.read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(content):
            return self._answer({}, 416)
        part = content[first : last + 1]
        where = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return self._send(206, part, {"Content-Range": where})

    def _about(self, bucket, name):
        path = self.folder / bucket / name
        if not path.exists():
            return self._answer({}, 404)
        status = path.stat()
        return self._answer(
            {
                "size": str(status.st_size),
                "generation": str(status.st_mtime_ns),
                "updated": "2026-01-01T00:00:00.000Z",
            }
        )

    def _list(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], {}
        for path in sorted((self.folder / bucket).iterdir()):
            name = urllib.parse.unquote(path.name)
            if not name.startswith(prefix) or path.name == "%aside":
                continue
            inside, cut, _ = name[len(prefix) :].partition(delimiter or "\0")
            if delimiter and cut:
                prefixes[prefix + inside + cut] = None
            else:
                items.append({"name": name, "size": str(path.stat().st_size)})
        return self._answer({"items": items, "prefixes": list(prefixes)})

    def _answer(self, content, status=200, **headers):
        body = b"" if status == 204 else json.dumps(content).encode()
        return self._send(status, body, {"Content-Type": "application/json", **headers})

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main(folder, certificate, address):
    Handler.folder, Handler.uploads, Handler.lock = Path(folder), {}, threading.Lock()
    server = http.server.ThreadingHTTPServer((address, 443), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
