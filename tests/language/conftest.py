"""All tests here need transformers."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="language models need vecenv[language]")
