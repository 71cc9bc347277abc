"""Hooks of the documentation site: mkdocs.yml names this file, and `mkdocs build` calls its functions.

The site has the pages of docs/, the notebooks of docs/notebooks/ with their outputs, and a page of docstrings for each
room of plmjax/. The pages link to files beside docs/, so that they can be read in the repository too. On the site these
links lead to docstrings or to the repository.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the extra `docs` installs it; tests call the hooks without it
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "plmjax"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
CALLED = ("experiment", "runs", "inference", "generation", "finetuning", "models", "objectives", "data", "training")
"""Rooms that a program of a user imports from. The others follow behind them."""
ROOMS = sorted(
    (path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "experiments"),
    key=lambda room: (CALLED.index(room) if room in CALLED else len(CALLED), room),
)
"""The folders of plmjax/. The files of `experiments` are runs, and lie beside the package in the repository."""
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
"""The modules beside the rooms."""
BEHIND_PAGES = "---\nsearch:\n  boost: 0.1\n---\n\n"
"""The beginning of a page of docstrings: a search finds pages of docs/ first."""
FENCE_OR_LINK = re.compile(r"^```.*?^```$|\[(?P<text>[^\[\]]+)\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)


def api_pages() -> dict[str, str]:
    """Return the Markdown of the pages of docstrings by path: the calls of plmjax, each room, and the other modules."""
    calls = '::: plmjax\n    options: {show_submodules: false, filters: ["!^_"]}\n'
    beside = "\n".join(f"::: plmjax.{name}\n    options: {{heading_level: 2}}\n" for name in MODULES)
    pages = {"api/index.md": calls} | {f"api/{room}.md": f"::: plmjax.{room}\n" for room in ROOMS}
    pages["api/beside.md"] = f"# Modules beside the rooms\n\n{beside}"
    return {path: BEHIND_PAGES + markdown for path, markdown in pages.items()}


def notebook_pages() -> dict[str, Path]:
    """Return the notebooks by the paths of their pages."""
    return {f"notebooks/{path.stem}.md": path for path in NOTEBOOKS}


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Add the docstrings to the section "Reference" of the navigation."""
    names = {path: Path(path).stem for path in api_pages()} | {"api/index.md": "plmjax", "api/beside.md": "Others"}
    (reference,) = [section["Reference"] for section in config.nav if "Reference" in section]
    reference.append({"API": [{name: path} for path, name in names.items()]})
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages of docstrings, and the notebooks with their pictures."""
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    for path, markdown in api_pages().items():
        files.append(File.generated(config, path, content=markdown))
    for path, notebook in notebook_pages().items():
        markdown, found = MarkdownExporter().from_filename(str(notebook), {"unique_key": notebook.stem})
        files.append(File.generated(config, path, content=markdown))
        for name, picture in found["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Change the links of a page that lead out of docs/ into links that the site can follow.

    A link whose text is the name of a page, as in `[data.md](data.md)`, gets its title in the navigation. A link to a
    notebook leads to its page.
    """
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def on_site(found: re.Match) -> str:
        if found["text"] is None or "://" in found["target"]:
            return found[0]
        name, sharp, anchor = found["target"].partition("#")
        file = Path(os.path.normpath(folder / name))
        if not file.is_relative_to(docs):
            return outside(found["text"], file, sharp + anchor, config.repo_url)
        if file.suffix == ".ipynb":
            return f"[{found['text']}]({Path(name).with_suffix('.md').as_posix()})"
        named = files.get_file_from_path(file.relative_to(docs).as_posix()) if found["text"] == name else None
        return f"[{named.page.title}]({found['target']})" if named else found[0]

    return FENCE_OR_LINK.sub(on_site, markdown)


def outside(text: str, file: Path, anchor: str, repository: str | None) -> str:
    """Return the Markdown of a link from the site to a file of the repository.

    Args:
        text: the text of the link.
        file: the absolute path of the file.
        anchor: the heading in the file, as "#heading", or "".
        repository: the address of the repository. Without one (None), the text stays without a link, unless the site
            has docstrings of the file.
    """
    path = file.relative_to(ROOT)
    module = [part for part in path.with_suffix("").parts if part != "__init__"]
    if module[0] == "plmjax" and (len(module) == 1 or module[1] in (*ROOMS, *MODULES)):
        return f"[{text}][{'.'.join(module)}]"
    return f"[{text}]({repository}/blob/main/{path.as_posix()}{anchor})" if repository else text
