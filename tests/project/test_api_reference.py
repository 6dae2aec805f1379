"""The reference has every public name with its signature, parameters and an example, as the code has it
now.
"""

from __future__ import annotations

from tessera.ops.define import FUNCTIONS
from tools import api_reference as api
from tools import docs_site


def test_every_public_name_is_documented() -> None:
    assert api.undocumented() == []
    assert [n for n, f in FUNCTIONS.items() if not (f.op.doc or "").strip()] == []


def test_the_site_puts_the_reference_on_its_page() -> None:
    page = api.DOCS / "api.md"
    assert "<!-- api -->" in page.read_text()
    assert "### ts.jit\n" in docs_site.rendered(page.read_text(), page)


def test_the_page_has_every_name_with_a_signature_and_an_example() -> None:
    text = api.reference()
    found = api.lines()
    names = [e for prefix, m, _ in api.MODULES for e in api.entries(prefix, m)]
    assert len(names) > 250
    for e in names:
        assert f"### {e.name}\n" in text, e.name
        assert api.call_of(e) in text, e.name
        assert api.example_of(e, found) in text, e.name
    assert " at 0x" not in text


def test_an_undocumented_name_is_found() -> None:
    class Bare:
        __module__ = "tessera.bare"

    Bare.__doc__ = None
    assert api._doc(Bare) == ""
    assert api._is_ours(Bare)
    assert list(api.entries("ts.bare", type("M", (), {"__all__": ["Bare"], "Bare": Bare}))) == [
        ("ts.bare.Bare", Bare, "")
    ]
