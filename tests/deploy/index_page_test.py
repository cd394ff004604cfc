"""What a package index shows of the wheel: README's links lead out or nowhere, its code is as it was, and pyproject.toml says who
and for what."""

import os
import re
import sys
import tomllib
import unittest
from unittest import mock

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "deploy", "wheel"))
import index_page  # noqa: E402

HOME = "https://example.org/ddprun"
RELATIVE = re.compile(r"\]\((?!https?:|#)")


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def code_of(text):
    return re.findall(r"^```.*?^```$", text, flags=re.MULTILINE | re.DOTALL)


class Readme(unittest.TestCase):
    def page(self, home):
        with mock.patch.dict(os.environ, DDPRUN_HOMEPAGE=home), mock.patch.object(index_page, "homepage", lambda: home):
            return index_page.dynamic_metadata("readme")["text"]

    def setUp(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            self.readme = file.read()

    def test_no_link_leads_to_a_file_that_an_index_has_not(self):
        self.assertGreater(len(RELATIVE.findall(without_code(self.readme))), 30)
        for home in ("", HOME):
            page = self.page(home)
            self.assertEqual(RELATIVE.findall(without_code(page)), [])
            self.assertEqual(code_of(page), code_of(self.readme))
        self.assertNotIn("](docs", self.page(""))
        self.assertIn(f"]({HOME}/blob/HEAD/docs/python.md)", self.page(HOME))

    def test_links_within_the_page_and_out_of_it_stay(self):
        text = "[a](#b) [c](https://d.org) ![e](docs/f.svg) [g\nh](docs/i.md#j)\n```\n[&](x) {}\n```\n"
        self.assertEqual(index_page.standing_alone(text, ""), "[a](#b) [c](https://d.org)  g\nh\n```\n[&](x) {}\n```\n")
        self.assertEqual(index_page.standing_alone(text, HOME),
                         f"[a](#b) [c](https://d.org) ![e]({HOME}/raw/HEAD/docs/f.svg) [g\nh]({HOME}/blob/HEAD/docs/i.md#j)\n"
                         "```\n[&](x) {}\n```\n")


class Address(unittest.TestCase):
    def test_of_gits_origin(self):
        for origin, page in (("https://example.org/a/b.git\n", "https://example.org/a/b"), ("git@example.org:a/b.git", "https://example.org/a/b"),
                             ("ssh://git@example.org/a/b", "https://example.org/a/b"), ("https://me:secret@example.org/a/b", "https://example.org/a/b"),
                             ("/home/me/b", ""), ("", ""), ("http://example.org/a", "")):
            self.assertEqual(index_page.address_of(origin), page)

    def test_without_one_there_are_no_urls(self):
        with mock.patch.object(index_page, "homepage", lambda: ""):
            self.assertEqual(index_page.dynamic_metadata("urls"), {})
        with mock.patch.dict(os.environ, DDPRUN_HOMEPAGE=HOME + "/"):
            self.assertEqual(index_page.dynamic_metadata("urls")["Homepage"], HOME)


class Project(unittest.TestCase):
    def test_who_and_for_what(self):
        with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)["project"]
        self.assertTrue(project["authors"])
        self.assertLessEqual({"readme", "urls", "version"}, set(project["dynamic"]))
        versions = [name.rsplit(" ", 1)[1] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
        self.assertEqual(versions[0], project["requires-python"].removeprefix(">="))
        self.assertGreaterEqual(len(versions), 5)
        # The owner has not chosen a licence; README says so, and nothing else may say otherwise.
        self.assertNotIn("license", project)
        self.assertFalse([name for name in project["classifiers"] if name.startswith("License")])


if __name__ == "__main__":
    unittest.main()
