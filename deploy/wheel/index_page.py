"""What a package index shows of ddprun: README without relative links, and addresses.

For scikit-build-core.
An index page knows nothing of the repository's files. Where the repository has an address, by
DDPRUN_HOMEPAGE or as git's "origin", links lead there; else only their text stays.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def address_of(origin):
    """Return the page of a repository by git's name for it, or an empty text."""
    found = re.fullmatch(
        r"(?:https://(?:[^@/]*@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", origin.strip()
    )
    return f"https://{found[1]}/{found[2]}" if found else ""


def homepage():
    """Return the repository's page, or an empty text."""
    given = os.environ.get("DDPRUN_HOMEPAGE", "").rstrip("/")
    if given:
        return given
    try:
        asked = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return address_of(done.stdout)


def standing_alone(text, home):
    """Return Markdown whose links lead to `home`, or, if that is empty, nowhere but out."""

    def link(found):
        picture, words, target = found.groups()
        if re.match(r"\w+:|#", target):
            return found[0]
        if not home:
            return "" if picture else words
        return f"{picture}[{words}]({home}/{'raw' if picture else 'blob'}/HEAD/{target})"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def dynamic_metadata(field, settings=None, project=None):
    """Return the value of a field of pyproject.toml's [project]."""
    home = homepage()
    if field == "readme":
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        return {"content-type": "text/markdown", "text": standing_alone(text, home)}
    if field == "urls":
        pages = {"Documentation": "README.md#documentation", "Changelog": "CHANGELOG.md"}
        links = {name: f"{home}/blob/HEAD/{file}" for name, file in pages.items()}
        return {"Homepage": home, **links} if home else {}
    raise ValueError(f"no {field} here")
