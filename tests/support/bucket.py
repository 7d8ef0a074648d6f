"""`gs://b` on this machine: commands that run in it take `fake_bucket` for Google Cloud Storage.

They see a file /etc/hosts of their own, in a mount namespace, by which Google's names lead to the
server, and trust the authority that has signed its certificate. Needs root.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fake_bucket
import namespaces
import peers
import pytest

NAMES = "www.googleapis.com", "storage.googleapis.com"

# What the tests do, done once where it leaves nothing behind: root alone may not be enough.
_PROBE = (
    "ip link add probe0 type bridge && ip link add probe1 type veth peer name probe2 && "
    "mount --bind /etc/hosts /etc/hosts"
)


def _allowed():
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("unshare")):
        return False
    command = ["unshare", "--mount", "--net", "sh", "-c", _PROBE]
    return subprocess.run(command, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _allowed(), reason="namespaces need root, what root may do, and the commands ip and unshare"
)


class Bucket(NamedTuple):
    """Where the store's parts are."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a command in it needs to be set."""
        return {
            "CURL_CA_BUNDLE": f"{self.folder}.authority",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
            "NO_GCE_CHECK": "true",
        }

    def inside(self, *words: object, network: str = "") -> list[object]:
        """A command of Python, with these words, in a namespace where the names lead here.

        Args:
            words: `-m MODULE …` or `PATH …`.
            network: The namespace of its network, if it has one of its own.
        """
        return [sys.executable, namespaces.__file__, f"{self.folder}.hosts", network, *words]

    def path(self, address: str) -> Path:
        """The file that holds an object."""
        return fake_bucket.path_of(self.folder, address)

    def upload(self, *paths: Path) -> None:
        for path in paths:
            shutil.copy(path, self.path(f"gs://b/{path.name}"))

    def download(self, address: str, folder: Path) -> None:
        """Copies what lies below the address."""
        start = self.path(f"{address}/")
        for path in start.parent.glob(f"{start.name}?*"):
            name = path.name.removeprefix(start.name).replace("%2F", "/")
            if not name.endswith("/"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / name)

    def requests(self) -> list[list[str]]:
        """What was asked for: (who, method, path, bytes) each time."""
        lines = Path(f"{self.folder}.requests").read_text().splitlines()
        return [line.split(" ", 3) for line in lines]


@contextlib.contextmanager
def serve(folder: Path, address: str = "127.7.7.7") -> Iterator[Bucket]:
    """A bucket that is there meanwhile, at an address of this machine."""
    authority = peers.load("trustme").CA()
    bucket = Bucket(folder / "store")
    (bucket.folder / "b").mkdir(parents=True)
    Path(f"{bucket.folder}.hosts").write_text(f"127.0.0.1 localhost\n{address} {' '.join(NAMES)}\n")
    authority.cert_pem.write_to_path(f"{bucket.folder}.authority")
    certificate = f"{bucket.folder}.certificate"
    authority.issue_cert(*NAMES).private_key_and_cert_chain_pem.write_to_path(certificate)
    server = subprocess.Popen(
        [sys.executable, fake_bucket.__file__, bucket.folder, certificate, address],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout.readline() == b"ready\n"
        yield bucket
    finally:
        server.kill()
        server.communicate()
