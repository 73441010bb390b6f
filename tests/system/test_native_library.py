"""C++ sources are built once for what they and their headers say, and a machine without a compiler is told once."""

import pytest

from vecenv.system import native_library
from vecenv.system.native_library import built_library


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "answer.hpp").write_text("constexpr int ANSWER = 42;")
    (tmp_path / "own.cpp").write_text('#include "answer.hpp"\nextern "C" int answer() { return ANSWER; }')
    built_library.cache_clear()
    yield tmp_path / "own.cpp"
    built_library.cache_clear()


@pytest.mark.skipif(native_library.compiler() is None, reason="no C++ compiler")
def test_a_source_is_built_again_when_a_header_beside_it_changes(source):
    cache = source.parent / "cache" / "vecenv"
    for answer, files in ((42, 1), (42, 1), (43, 2)):
        source.with_name("answer.hpp").write_text(f"constexpr int ANSWER = {answer};")
        built_library.cache_clear()
        assert built_library(source).answer() == answer
        assert len(list(cache.iterdir())) == files


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-compiler", "compiler was found"), ("false", "returned non")]
)
def test_without_a_working_compiler_there_is_none(source, monkeypatch, compiler, reason):
    monkeypatch.setenv("CXX", compiler)
    with pytest.warns(RuntimeWarning, match=rf"own.cpp is not built, PyTorch does its work \(slower\): .*{reason}"):
        assert built_library(source) is None
