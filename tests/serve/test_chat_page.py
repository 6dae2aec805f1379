"""The chat page in a browser: messages are sent, replies stream in, chats are kept apart, nothing
overflows.
"""

import pytest

import tessera as ts
from tests.support.cases.model_files import SMALL, llama_gguf
from tests.support.runners.browser import BROWSER, browsing
from tests.support.runners.serving import serving

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

WAIT = """
const until = async good => { for (let i = 0; i < 600 && !good(); i++) await new Promise(r => setTimeout(r, 50)); return good(); };
const send = text => { $("text").value = text; $("form").requestSubmit(); };
"""  # noqa: E501
TALK = (
    WAIT
    + """
$("temperature").value = 0;
send("<b>Hi</b> & hello");
const busy = $("send").textContent;
await until(() => !running);
const first = messages.map(m => m.role), boxes = [...document.querySelectorAll(".message")].map(b => b.className);
const shown = document.querySelector(".user").textContent, bold = document.querySelectorAll("#chat b").length;
const whole = document.querySelector(".assistant").textContent === messages[1].content;
const note = document.querySelector(".note").textContent;
return { busy, first, boxes, shown, bold, whole, note, idle: $("send").textContent };
"""  # noqa: E501
)
APART = (
    WAIT
    + """
send("another");
await until(() => document.querySelector(".assistant:last-of-type") && running);
$("new").click();
const left = messages.length, empty = $("chat").children.length;
await new Promise(r => setTimeout(r, 300));
send("third");
await until(() => !running && messages.length === 2);
return { left, empty, roles: messages.map(m => m.role), asked: messages[0].content, idle: $("send").textContent };
"""  # noqa: E501
)
FAILED = (
    WAIT
    + """
$("new").click();
send("x".repeat(4000));
await until(() => !running);
return { error: document.querySelector(".error").textContent, kept: messages.length };
"""
)
WIDE = "return [document.documentElement.scrollWidth, innerWidth, $('text').getBoundingClientRect().right, $('chat').clientHeight]"  # noqa: E501
INK = "const s = getComputedStyle(document.documentElement); return [matchMedia('(prefers-color-scheme: dark)').matches, s.colorScheme]"  # noqa: E501


def test_a_chat_in_a_browser(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    with serving(ts.models.load(path)) as client, browsing() as page:
        page.go(f"http://127.0.0.1:{client.port}/")
        said = page.run(TALK)
        assert said["first"] == ["user", "assistant"]
        assert said["boxes"] == ["message user", "message assistant"]
        assert (said["busy"], said["idle"]) == ("Stop", "Send")
        assert (said["shown"], said["bold"], said["whole"]) == ("<b>Hi</b> & hello", 0, True)
        assert "tokens," in said["note"]
        apart = page.run(APART)
        assert (apart["left"], apart["empty"], apart["idle"]) == (0, 0, "Send")
        assert (apart["roles"], apart["asked"]) == (["user", "assistant"], "third")
        client.until(lambda: client.service.engine.pages.used == 0)
        for width in (1200, 390):
            for scheme in ("light", "dark"):
                page.look(width, 700, scheme)
                whole, window, right, high = page.run(WIDE)
                assert whole <= window == width
                assert right <= width
                assert high > 300
                assert page.run(INK) == [scheme == "dark", "light dark"]
        failed = page.run(FAILED)
        assert "context and cache have room for" in failed["error"]
        assert failed["kept"] == 0
        assert page.failures == []
