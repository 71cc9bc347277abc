"""The project in one archive: the files that git tracks, as in the working tree, without credentials."""

import dataclasses
import fnmatch
import gzip
import hashlib
import io
import re
import shlex
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from plmjax.errors import UserError, listed

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the project that is packed, to which this file belongs."""
WITHOUT_GIT = ("plmjax", "experiments", "tpu", "setup.py", "pyproject.toml", "README.md")
"""Files and folders that are packed if the project is not a git checkout."""
LARGEST = 64 * 2**20
"""Maximum size in bytes of a packed file. Data belongs in the bucket."""
CREDENTIAL_NAMES = (
    ".env .env.* *.env .envrc .netrc .pypirc .npmrc .git-credentials .credentials* *credentials*.json *credentials "
    "*service?account*.json *secret*.json *secret*.yaml *secret*.yml *.pem *.key *.p12 *.pfx *.jks *.keystore id_rsa* "
    "id_dsa* id_ecdsa* id_ed25519* .htpasswd token.json kubeconfig*"
).split()
"""Patterns of names, in lower case, of files that usually hold credentials."""
CREDENTIAL_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{16}|\"private_key\"\s*:\s*\"-----BEGIN|"
    rb"aws_secret_access_key\s*=\s*[A-Za-z0-9/+]{40}"
)
"""Text that occurs in files of credentials and not in programs."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The packed files of a project, and those left out because they look like credentials."""

    sizes: dict[str, int]
    """Name relative to the project -> bytes, sorted."""
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the packed files, sorted."""
        return list(self.sizes)

    def with_made(self, made: Mapping[str, bytes]) -> "Selection":
        """Return the selection with files that are made for the archive."""
        sizes = self.sizes | {name: len(contents) for name, contents in made.items()}
        return dataclasses.replace(self, sizes=dict(sorted(sizes.items())))

    def by_folder(self) -> Iterator[str]:
        """Yield a line for each folder and file at the top of the project: its number of files and their bytes."""
        tops: dict[str, list[int]] = {}
        for name, size in self.sizes.items():
            top, slash, _ = name.partition("/")
            tops.setdefault(f"{top}{slash}", []).append(size)
        for top, sizes in tops.items():
            files = f"{len(sizes)} file{'s' if len(sizes) > 1 else ''}, " if top.endswith("/") else ""
            yield f"pack    {top}  {files}{sum(sizes):,} bytes"

    def explain_left_out(self) -> Iterator[str]:
        """Yield a line for each file that is left out, with the option that packs it."""
        for name in self.left_out:
            yield f"leave   {name}  looks like credentials; --include {shlex.quote(name)} packs it"


def select(root: Path, experiment: str = "", include: Collection[str] = ()) -> Selection:
    """Select the files to pack.

    experiment: name of a file that is packed although git does not track it; empty for none.
    include: names of files that are packed although they look like credentials.

    Raises:
        UserError: there is no project at `root`; a file is too large to be a program; a symbolic link leads out of the
            project; a name in `include` is not among the files that would be left out.
    """
    if not (root / "setup.py").is_file() or not (root / "plmjax").is_dir():
        raise UserError(f"Expected the project (setup.py and plmjax/) in {root}, found none; run python -m tpu there.")
    if (root / ".git").exists():
        names = {name for name in _tracked_files(root) if (root / name).is_file()}
    else:
        found = [path for name in WITHOUT_GIT for path in ((root / name), *(root / name).rglob("*"))]
        names = {str(path.relative_to(root)) for path in found if path.is_file() and "__pycache__" not in path.parts}
    names |= {experiment} if experiment else set()
    for name in sorted(names):
        if not (target := (root / name).resolve()).is_relative_to(root.resolve()):
            raise UserError(
                f"Expected files of the project in {root}, found the link {name} to {target} outside; put a copy there "
                f"or remove the link."
            )
        if (size := (root / name).stat().st_size) > LARGEST:
            raise UserError(
                f"Expected files of a program in {root}, found {name} of {size:,} bytes; put data into the bucket "
                f"and take it out of git."
            )
    secret = {name for name in names if _holds_credentials(root, name)}
    for name in include:
        if name not in secret:
            raise UserError(
                f"Expected --include to name a file that is left out, found {name!r}; left out: "
                f"{listed(sorted(secret))}."
            )
    left_out = secret - set(include)
    return Selection({name: (root / name).stat().st_size for name in sorted(names - left_out)}, tuple(sorted(left_out)))


def _holds_credentials(root: Path, name: str) -> bool:
    path = root / name
    parts = [part.lower() for part in (*Path(name).parts, path.resolve().name)]
    if any(fnmatch.fnmatchcase(part, pattern) for part in parts for pattern in CREDENTIAL_NAMES):
        return True
    return CREDENTIAL_TEXT.search(path.read_bytes()) is not None


def _tracked_files(root: Path) -> list[str]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UserError(f"Expected git, to list the files of {root}, found none; install it.") from None
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"Expected git to list the files of {root}, found: {error.stderr.strip().splitlines()[0]}; fix it."
        ) from None
    return listed.stdout.split("\0")


def pack(names: Collection[str], root: Path, made: Mapping[str, bytes] | None = None) -> tuple[str, bytes]:
    """Return (name in the bucket, contents) of the archive.

    The same files give the same bytes at any time and place.

    made: name -> contents of further files, which are not in `root`.
    """
    made, packed = made or {}, io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted({*names, *made}):
            contents = made[name] if name in made else (root / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(contents)
            entry.mode = 0o755 if name not in made and (root / name).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(contents))
    contents = packed.getvalue()
    return f"packages/{hashlib.sha256(contents).hexdigest()[:16]}.tar.gz", contents
