"""The synchronous half of the API, as it is generated from the asyncio one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import unasync
from tools.unasync import HALVES, Half, formatted, main, to_sync


def converted(body: str, **texts: str) -> str:
    """What follows the module's docstring."""
    half = Half(source="aio.py", target="sync.py", docstring="The half.\n", texts=texts)
    header, _, code = to_sync(f'"""Its source."""\n{body}', half).partition('"""\n')
    assert header == (
        '"""The half.\n\nGenerated from `api/aio.py` by `tools/unasync.py`: change that module.\n'
    )
    return code


def test_async_and_await_are_dropped_and_names_are_replaced() -> None:
    source = """
async def open(client: AsyncClient) -> int:
    async with client as entered:
        async for each in entered.__aiter__():
            await session.await_run(each)
    return min((await entered).values())
"""
    assert (
        converted(source)
        == """
def open(client: Client) -> int:
    with client as entered:
        for each in entered.__iter__():
            session.run(each)
    return min((entered).values())
"""
    )


def test_words_in_texts_stay() -> None:
    source = '''
def open() -> None:
    """Callers await the async `AsyncClient`."""
    raise Closed("await async AsyncClientele")  # they await AsyncClient
'''
    assert (
        converted(source)
        == '''
def open() -> None:
    """Callers await the async `Client`."""
    raise Closed("await async AsyncClientele")  # they await Client
'''
    )


def test_examples_lose_async_and_await() -> None:
    source = '''
def connect() -> None:
    """Connects.

    >>> async with connect_async(b) as client:
    ...     await client.close()
    """
'''
    assert (
        converted(source)
        == '''
def connect() -> None:
    """Connects.

    >>> with connect(b) as client:
    ...     client.close()
    """
'''
    )


def test_marked_statements_are_left_out() -> None:
    source = """
class Reader:
    async def open(self) -> None:  # asyncio only
        for each in self:
            await each

    def close(
        self,
        opening: int,  # asyncio only
        feed: int,
    ) -> None:
        for each in feed:  # asyncio only
            yield each
        # sync: if feed:
        # sync:     yield from feed
        self.closed = await self.feed.close(  # asyncio only
            opening
        )
        self.feed = None
"""
    assert (
        converted(source)
        == """
class Reader:

    def close(
        self,
        feed: int,
    ) -> None:
        if feed:
            yield from feed
        self.feed = None
"""
    )


def test_a_statement_for_the_io_thread_stays_async() -> None:
    source = """
async def shut(self) -> None:  # async in both halves
    await self.core.close()

async def close(self) -> None:
    await self.core.close()
"""
    assert (
        converted(source)
        == """
async def shut(self) -> None:
    await self.core.close()

def close(self) -> None:
    self.core.close()
"""
    )


def test_texts_of_docstrings_are_replaced_and_wrapped() -> None:
    source = '''
def send() -> None:
    """Sends it.

    Never blocks, whatever
    the buffer holds: see AsyncClient.

    Raises
    Closed.
    """
'''
    never, blocks = "Never blocks, whatever the buffer holds:", "It blocks while there is no room:"
    assert (
        converted(source, **{never: blocks})
        == '''
def send() -> None:
    """Sends it.

    It blocks while there is no room: see Client.

    Raises
    Closed.
    """
'''
    )


def test_a_text_that_no_docstring_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="no docstring has 'gone'"):
        converted('\ndef send() -> None:\n    """Sends."""\n', gone="here")


def test_a_text_that_several_docstrings_have_is_an_error() -> None:
    twice = '\ndef a() -> None:\n    """Sends."""\n\ndef b() -> None:\n    """Sends."""\n'
    with pytest.raises(ValueError, match="'Sends' stands in several docstrings"):
        converted(twice, Sends="Stores")


@pytest.mark.parametrize("comment", ["# async only", "# sync:pass", "# asyncio only, so far"])
def test_a_comment_that_is_nearly_a_mark_is_an_error(comment: str) -> None:
    with pytest.raises(ValueError, match="is no mark"):
        converted(f"\nclosed = True  {comment}\n")


def test_imports_that_are_not_used_any_more_are_removed() -> None:
    code = "import contextlib\nimport abc\n\n\n\nprint( abc )\n"
    assert formatted(code, Path("client/semel/client/api/sync.py")) == "import abc\n\nprint(abc)\n"


def test_a_stale_module_is_found_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = tmp_path / unasync.API
    api.mkdir(parents=True)
    for half in HALVES:
        (api / half.source).write_text((unasync.ROOT / unasync.API / half.source).read_text())
    (tmp_path / "pyproject.toml").write_text((unasync.ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(unasync, "ROOT", tmp_path)
    assert main(["--check"]) == 1, "none is there"
    assert main([]) == 0
    assert main(["--check"]) == 0
    stale = api / "sync_topic_admin.py"
    stale.write_text(stale.read_text().replace("queues: int = 4", "queues: int = 5"))
    before = stale.read_text()
    capsys.readouterr()
    assert main(["--check"]) == 1
    assert "sync_topic_admin.py is stale: run `python tools/unasync.py`" in capsys.readouterr().err
    assert stale.read_text() == before
