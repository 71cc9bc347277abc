"""Hooks of the documentation site: mkdocs.yml names this file, and `mkdocs build` calls its functions.

The site has the pages of docs/, and a page of docstrings for each room of plmjax/. The pages link to files beside
docs/, so that they can be read in the repository too. On the site these links lead to docstrings or to the repository.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "plmjax"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "experiments")
"""The folders of plmjax/. The files of `experiments` are runs, and lie beside the package in the repository."""
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__"))
"""The modules beside the rooms."""
FENCE_OR_LINK = re.compile(r"^```.*?^```$|\[(?P<text>[^\[\]]+)\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the section of docstrings to the navigation."""
    rooms = [{room: f"api/{room}.md"} for room in ROOMS]
    config.nav = [*config.nav, {"API": [{"plmjax": "api/index.md"}, *rooms]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of docstrings: one for each room, and one for the modules beside them."""
    package = ["# plmjax\n", "::: plmjax\n    options: {show_submodules: false}\n"]
    package += [f"::: plmjax.{name}\n    options: {{show_root_heading: true}}\n" for name in MODULES]
    files.append(File.generated(config, "api/index.md", content="\n".join(package)))
    for room in ROOMS:
        files.append(File.generated(config, f"api/{room}.md", content=f"# plmjax.{room}\n\n::: plmjax.{room}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page that lead out of docs/ into links that the site can follow.

    A link whose text is the name of a page, as in `[data.md](data.md)`, gets its title in the navigation.
    """
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_uri).parent

    def on_site(found: re.Match) -> str:
        if found["text"] is None or "://" in found["target"]:
            return found[0]
        name, sharp, anchor = found["target"].partition("#")
        file = Path(os.path.normpath(folder / name))
        if not file.is_relative_to(docs):
            return link(found["text"], file, sharp + anchor, config.repo_url)
        named = files.get_file_from_path(file.relative_to(docs).as_posix()) if found["text"] == name else None
        return f"[{named.page.title}]({found['target']})" if named else found[0]

    return FENCE_OR_LINK.sub(on_site, markdown)


def link(text: str, file: Path, anchor: str, repository: str | None) -> str:
    """Return the Markdown of a link from the site to a file of the repository.

    Args:
        text: the text of the link.
        file: the absolute path of the file.
        anchor: the heading in the file, as "#heading", or "".
        repository: the address of the repository. Without one (None), the text stays without a link, unless the site
            has docstrings of the file.
    """
    path = file.relative_to(ROOT)
    if path.parts[0] == "plmjax" and path.parts[1] in ROOMS:
        module = [part for part in path.with_suffix("").parts if part != "__init__"]
        return f"[{text}][{'.'.join(module)}]"
    return f"[{text}]({repository}/blob/main/{path}{anchor})" if repository else text
