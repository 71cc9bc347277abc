"""The archive that the hosts of a job receive: the user's files, without credentials, and plmjax.

For an experiment in a checkout of plmjax, the archive has the files of the checkout that git tracks, as in the working
tree. For an experiment of the user, it has the files of the working directory, or of the experiment's folder if that is
elsewhere. It then has plmjax, too, in the folder LIBRARY: the files of the submitting checkout, or a wheel of the
submitting installation. For an experiment of an installation, it has this wheel only. So the hosts run the plmjax of
the submitting machine, not one from a package registry.
"""

import dataclasses
import fnmatch
import gzip
import hashlib
import importlib.metadata
import io
import os
import re
import shlex
import subprocess
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from plmjax.errors import UserError, listed

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the checkout or the installation to which this file belongs."""
LIBRARY = ".plmjax"
"""Folder of the archive for the versions of libraries, and for plmjax unless the archive is a checkout of it."""
WHEEL_DATE = (2020, 1, 1, 0, 0, 0)
"""Date of every file in a wheel, so that the same files give the same bytes."""
OF_AN_INSTALLATION = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Files that pip adds to the metadata of a package when it installs it."""
WITHOUT_GIT = ("plmjax", "experiments", "tpu", "setup.py", "pyproject.toml", "README.md")
"""Files and folders of plmjax that are packed if its checkout has no git."""
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

    def lines(self, verbose: bool) -> Iterator[str]:
        """Yield the number of packed files, or each of them if `verbose`; then each file that is left out."""
        if verbose:
            yield from (f"pack    {name}  {size:,} bytes" for name, size in self.sizes.items())
        else:
            count = len(self.sizes)
            files = "1 file" if count == 1 else f"{count:,} files"
            yield f"pack    {files}, {sum(self.sizes.values()):,} bytes; --verbose lists them"
        yield from self._explain_left_out()

    def _explain_left_out(self) -> Iterator[str]:
        """Yield a line for each file that is left out, with the option that packs it."""
        for name in self.left_out:
            yield f"leave   {name}  looks like credentials; --include {shlex.quote(name)} packs it"


@dataclasses.dataclass(frozen=True)
class Source:
    """The files of a job, and how its hosts use them.

    root: folder whose files are packed, in which the hosts run the command.
    files: the files of that folder.
    made: name -> contents of further files.
    library: what pip installs in that folder.
    experiment: FILE in that folder, or the name of an experiment of plmjax.
    """

    root: Path
    files: Selection
    made: Mapping[str, bytes]
    library: str
    experiment: str


def source(file: Path, include: Collection[str] = ()) -> Source:
    """Return the files of a job.

    file: absolute path of the file of its experiment.
    include: names of files that are packed although they look like credentials.

    Raises:
        UserError: see `select`; or plmjax is neither a checkout nor a complete installation.
    """
    if _is_checkout(ROOT) and file.is_relative_to(ROOT):
        name = file.relative_to(ROOT).as_posix()
        return Source(ROOT, select(ROOT, name, include), {}, ".[tpu]", name)
    made, library = _library()
    if file.is_relative_to(ROOT):  # an experiment of the installation
        return Source(ROOT, Selection({}), made, library, file.stem)
    root = Path.cwd() if file.is_relative_to(Path.cwd()) else file.parent
    name = file.relative_to(root).as_posix()
    return Source(root, select(root, name, include), made, library, name)


def _library() -> tuple[dict[str, bytes], str]:
    """Return (name -> contents of the files of plmjax, what pip installs)."""
    if _is_checkout(ROOT):
        files = select(ROOT).names
        return {f"{LIBRARY}/{name}": (ROOT / name).read_bytes() for name in files}, f"./{LIBRARY}[tpu]"
    name, contents = wheel(importlib.metadata.distribution("plmjax"))
    return {f"{LIBRARY}/{name}": contents}, f"./{LIBRARY}/{name}[tpu]"


def wheel(distribution: importlib.metadata.Distribution) -> tuple[str, bytes]:
    """Return (name, contents) of a wheel of an installed distribution of Python files.

    Raises:
        UserError: files of the distribution are missing.
    """
    names = {
        file.as_posix(): Path(distribution.locate_file(file))
        for file in distribution.files or ()
        if ".." not in file.parts and "__pycache__" not in file.parts and file.name not in OF_AN_INSTALLATION
    }
    if "plmjax/__init__.py" not in names or not all(path.is_file() for path in names.values()):
        raise UserError(
            f"Expected an installation of plmjax with all of its files, which the hosts receive, found another one at "
            f"{ROOT}; install plmjax again with pip."
        )
    (metadata,) = {name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA")}
    record, packed = [], io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(names.items()):
            contents = path.read_bytes()
            digest = urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(contents)}")
            archive.writestr(zipfile.ZipInfo(name, WHEEL_DATE), contents, zipfile.ZIP_DEFLATED)
        record.append(f"{metadata}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{metadata}/RECORD", WHEEL_DATE), "\n".join([*record, ""]))
    return f"{metadata.removesuffix('.dist-info')}-py3-none-any.whl", packed.getvalue()


def _is_checkout(root: Path) -> bool:
    return (root / "setup.py").is_file() and (root / "plmjax").is_dir()


def select(root: Path, experiment: str = "", include: Collection[str] = ()) -> Selection:
    """Select the files of a folder to pack: the files that git tracks or, without git, the Python files.

    In a checkout of plmjax without git, select the files of WITHOUT_GIT.

    experiment: name of a file that is packed although git does not track it; empty for none.
    include: names of files that are packed although they look like credentials.

    Raises:
        UserError: a file is too large to be a program; a symbolic link leads out of the folder; a name in `include` is
            not among the files that would be left out.
    """
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        names = {name for name in _tracked_files(root) if (root / name).is_file()}
    elif _is_checkout(root):
        found = [path for name in WITHOUT_GIT for path in ((root / name), *(root / name).rglob("*"))]
        names = {str(path.relative_to(root)) for path in found if path.is_file() and "__pycache__" not in path.parts}
    else:
        names = set(_python_files(root))
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


def _python_files(root: Path) -> Iterator[str]:
    """Yield the Python files of a folder, except those of hidden folders and of virtual environments."""
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(folder, name).relative_to(root).as_posix() for name in files if name.endswith(".py"))


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
