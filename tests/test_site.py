"""The documentation site: mkdocs.yml lists every page once, and the hooks add docstrings and change links."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest
import yaml

from tests.paths import ROOT

DOCS = ROOT / "docs"
SPECIFICATION = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
hooks = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(hooks)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the objects of Python and the variables of the environment that its tags name."""


for tag in ("!ENV", "tag:yaml.org,2002:python/"):
    Loader.add_multi_constructor(tag, lambda *_: None)


@pytest.fixture
def nav() -> list:
    """The navigation of the site, with what the hook adds."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    return hooks.on_config(types.SimpleNamespace(nav=config["nav"])).nav


def pages(nav: list) -> Iterator[str]:
    """The paths of a navigation, in its order."""
    for entry in nav:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else pages(below)


def test_the_navigation_has_every_page_once(nav: list) -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    listed = list(pages(nav))
    assert len(listed) == len(set(listed))
    assert set(listed) == written | hooks.api_pages().keys() | hooks.notebook_pages().keys()
    assert [title for tab in nav for title in tab] == [
        "Start",
        "Guides",
        "Models",
        "Reference",
        "Results",
        "Development",
    ]


def test_every_room_and_module_has_docstrings_on_a_page() -> None:
    """The calls of a user stand first in the navigation, and a search lists docstrings after the pages of docs/."""
    found = hooks.api_pages()
    rooms = {path.parent.name for path in (ROOT / "plmjax").glob("*/__init__.py")} - {"experiments"}
    assert {f"api/{room}.md" for room in rooms} == found.keys() - {"api/index.md", "api/beside.md"}
    assert all(found[f"api/{room}.md"].endswith(f"\n::: plmjax.{room}\n") for room in rooms)
    modules = {path.stem for path in (ROOT / "plmjax").glob("*.py")} - {"__init__", "__main__"}
    assert set(re.findall(r"^::: plmjax\.(\w+)$", found["api/beside.md"], re.M)) == modules
    assert list(found)[:4] == ["api/index.md", "api/experiment.md", "api/runs.md", "api/inference.md"]
    assert all(yaml.safe_load(page.split("---")[1])["search"]["boost"] < 1 for page in found.values())


TITLED = types.SimpleNamespace(page=types.SimpleNamespace(title="Data"))


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[BERT](../plmjax/models/bert.py)", "[BERT][plmjax.models.bert]"),
        ("[room](../plmjax/data/__init__.py)", "[room][plmjax.data]"),
        ("[package](../plmjax/)", "[package][plmjax]"),
        ("[script](../plmjax/__main__.py)", "[script](https://example.org/repository/blob/main/plmjax/__main__.py)"),
        ("[test](../tests/test_site.py)", "[test](https://example.org/repository/blob/main/tests/test_site.py)"),
        ("[s](../README.md#systems)", "[s](https://example.org/repository/blob/main/README.md#systems)"),
        ("[errors](../plmjax/errors.py)", "[errors][plmjax.errors]"),
        ("[data.md](data.md)", "[Data](data.md)"),
        ("[data.md](data.md#formats)", "[Data](data.md#formats)"),
        ("[formats](data.md#formats)", "[formats](data.md#formats)"),
        ("[below](#below)", "[below](#below)"),
        ("[a notebook](notebooks/bert.ipynb)", "[a notebook](notebooks/bert.md)"),
        ("[a library](https://example.org/../x)", "[a library](https://example.org/../x)"),
        ("```python\n[x](../plmjax/models/bert.py)\n```", "```python\n[x](../plmjax/models/bert.py)\n```"),
    ],
)
def test_links_of_a_page_lead_to_what_the_site_has(link: str, expected: str) -> None:
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="page.md"))
    files = types.SimpleNamespace(get_file_from_path={"data.md": TITLED}.get)
    config = types.SimpleNamespace(docs_dir=str(DOCS), repo_url="https://example.org/repository")
    assert hooks.on_page_markdown(f"Before\n{link}\nafter", page, config, files) == f"Before\n{expected}\nafter"


def test_without_a_repository_a_link_to_it_is_its_text() -> None:
    assert hooks.outside("the test", ROOT / "tests" / "test_site.py", "", None) == "the test"
    assert hooks.outside("BERT", ROOT / "plmjax" / "models" / "bert.py", "", None) == "[BERT][plmjax.models.bert]"


def test_the_front_page_has_the_commands_of_the_readme() -> None:
    def commands(page: Path) -> list[str]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        return [" ".join(command.split()) for command in re.findall(r"^python3 -m venv .*$", text, re.M)]

    assert len(commands(ROOT / "README.md")) == 2
    assert commands(DOCS / "index.md") == commands(ROOT / "README.md")


def docstrings(part: griffe.Object) -> Iterator[griffe.Docstring]:
    """The docstrings of a package and all below it."""
    if part.docstring:
        yield part.docstring
    for member in part.members.values():
        if not member.is_alias:
            yield from docstrings(member)


def test_every_docstring_is_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """mkdocs build --strict fails at such a warning. `params:`, alone on a line, begins a section, for example."""
    style = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["plugins"]
    (style,) = [one["mkdocstrings"]["handlers"]["python"]["options"] for one in style if "mkdocstrings" in one]
    package = griffe.load(
        "plmjax", search_paths=[ROOT], docstring_parser=style["docstring_style"], allow_inspection=False
    )
    read = [docstring.parsed for docstring in docstrings(package)]
    assert len(read) > 5000 and not [record.getMessage() for record in caplog.records]


# Reads and formats every docstring, 30 s: pytest -m slow tests/test_site.py
@pytest.mark.slow
@pytest.mark.parametrize("repository", ["", "https://example.org/repository"])
def test_the_site_is_built_without_a_warning(repository: str, tmp_path: Path) -> None:
    for name in ("material", "mkdocs", "mkdocstrings_handlers.python"):
        pytest.importorskip(name, reason="needs mkdocs, which the extra `docs` installs")
    pytest.importorskip("nbconvert", reason="needs nbconvert, which the extra `docs` installs")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "REPOSITORY_URL": repository}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    page = (tmp_path / "site" / "api" / "models" / "index.html").read_text(encoding="utf-8")
    assert 'id="plmjax.models.bert.BertModel"' in page
    linked = (tmp_path / "site" / "systems" / "index.html").read_text(encoding="utf-8")
    assert ("https://example.org/repository/blob/main/experiments/" in linked) == bool(repository)
    assert 'href="../api/models/#plmjax.models.bert"' in linked
    assert (tmp_path / "site" / "notebooks" / "bert" / "index.html").is_file()
    assert requests(tmp_path / "site") == set()


LOADED = re.compile(r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>""")
STYLES = re.compile(
    r"""<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon))[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
)
BY_THE_THEME = re.compile(r"""class=["']?mermaid|data-md-component=["']?source\b""")
"""Elements for which the theme's scripts ask a server: diagrams, and the repository's numbers."""


def requests(site: Path) -> set[str]:
    """Return the addresses of other servers from which the pages and styles of a site load something."""
    found: set[str] = set()
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        found.update(match[0] for pattern in (LOADED, STYLES, BY_THE_THEME) for match in pattern.finditer(text))
    for style in site.rglob("*.css"):
        found.update(re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", style.read_text(encoding="utf-8")))
    return found


def test_a_request_to_another_server_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://example.org">a link</a><link rel="canonical" href="https://example.org">'
        '<script src="https://cdn.example.org/mermaid.js"></script><link href="//fonts.example.org" rel="stylesheet">'
        '<img src="picture.png"><pre class="mermaid">'
    )
    (tmp_path / "site.css").write_text("@import url(https://fonts.example.org/css); a { background: url(b.png) }")
    assert len(requests(tmp_path)) == 4
