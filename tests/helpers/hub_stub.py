"""A Hugging Face Hub on loopback that stores what the real client pushes to it.

`python tests/helpers/hub_stub.py FOLDER` prints its address and serves until it is stopped; repositories go
to FOLDER.
"""

import base64
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN, READING_TOKEN = "hf_a_token_that_the_stub_accepts", "hf_a_token_that_may_only_read"
USER = "somebody"


class Hub(ThreadingHTTPServer):
    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.large: dict[str, bytes] = {}  # uploaded but not yet committed, by sha256
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply()

    def do_HEAD(self):
        self.reply()

    def do_POST(self):
        self.reply()

    def do_PUT(self):
        self.reply()

    def reply(self):
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_write = self.command == "POST" and "validate" not in path
        if is_write and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send({"error": "Invalid credentials"}, 401)
        for pattern, handle in ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                return handle(self, body, *match.groups())
        self.send({"error": f"no such page: {self.command} {path}"}, 404)

    def send(self, content, status=200, **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # ------------------------------------------------------------------------------------------- routes

    def whoami(self, body):
        roles = {f"Bearer {TOKEN}": "write", f"Bearer {READING_TOKEN}": "read"}
        role = roles.get(self.headers.get("Authorization", ""))
        if role is None:
            return self.send({"error": "Invalid credentials"}, 401)
        auth = {"type": "access_token", "accessToken": {"displayName": "a token", "role": role}}
        self.send({"type": "user", "name": USER, "orgs": [], "auth": auth})

    def create(self, body):
        request = json.loads(body)
        repo_id = f"{request.get('organization') or USER}/{request['name']}"
        (self.server.folder / repo_id).mkdir(parents=True, exist_ok=True)
        self.send({"url": f"{self.server.address}/{repo_id}", "name": repo_id, "id": repo_id})

    def validate(self, body):
        self.send({"errors": [], "warnings": []})

    def preupload(self, body, repo_id):
        """Small text files travel in the commit; others are uploaded before it."""
        small = (".md", ".json")
        files = [
            {
                "path": f["path"],
                "uploadMode": "regular" if f["path"].endswith(small) else "lfs",
                "shouldIgnore": False,
            }
            for f in json.loads(body)["files"]
        ]
        self.send({"files": files})

    def lfs_batch(self, body, repo_id):
        objects = [
            {
                **o,
                "actions": {
                    "upload": {"href": f"{self.server.address}/upload/{o['oid']}", "header": {}},
                },
            }
            for o in json.loads(body)["objects"]
        ]
        self.send({"transfer": "basic", "objects": objects})

    def put(self, body, oid):
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.large[oid] = body
        self.send(b"")

    def commit(self, body, repo_id):
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            path = self.server.folder / repo_id / value.get("path", "")
            match entry["key"]:
                case "file":
                    path.write_bytes(base64.b64decode(value["content"]))
                case "lfsFile":
                    path.write_bytes(self.server.large[value["oid"]])
                case "deletedFile":
                    path.unlink()
        commit = "0" * 40
        self.send({"success": True, "commitUrl": f"{self.server.address}/{repo_id}/commit/{commit}",
                   "commitOid": commit, "hookOutput": ""})  # fmt: skip

    def info(self, body, repo_id):
        folder = self.server.folder / repo_id
        if not folder.is_dir():
            return self.send({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        files = [{"rfilename": p.name, "size": p.stat().st_size} for p in sorted(folder.iterdir())]
        self.send({"id": repo_id, "modelId": repo_id, "sha": "0" * 40, "private": False,
                   "tags": [], "downloads": 0, "likes": 0, "siblings": files})  # fmt: skip

    def tree(self, body, repo_id):
        folder = self.server.folder / repo_id
        if not folder.is_dir():
            return self.send({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        self.send(
            [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40}
                for p in sorted(folder.iterdir())
            ]
        )

    def file(self, body, repo_id, name):
        path = self.server.folder / repo_id / name
        if not path.is_file():
            return self.send({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound")
        data = path.read_bytes()
        self.send(data, X_Repo_Commit="0" * 40, ETag=f'"{hashlib.sha256(data).hexdigest()}"')


REPO_ID = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    (r"GET /api/whoami-v2", Handler.whoami),
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", Handler.validate),
    (rf"POST /api/models/{REPO_ID}/preupload/main", Handler.preupload),
    (rf"POST /{REPO_ID}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (r"PUT /upload/(\w+)", Handler.put),
    (rf"POST /api/models/{REPO_ID}/commit/main", Handler.commit),
    (rf"GET /api/models/{REPO_ID}(?:/revision/\w+)?", Handler.info),
    (rf"GET /api/models/{REPO_ID}/tree/\w+/?", Handler.tree),
    (rf"(?:GET|HEAD) /{REPO_ID}/resolve/\w+/(.+)", Handler.file),
]

if __name__ == "__main__":
    print(Hub(Path(sys.argv[1])).address, flush=True)
    threading.Event().wait()
