"""A model that the tests of the generators and of the commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worldmodel.neural_market import save_started_model


@pytest.fixture(scope="session")
def started_model(tmp_path_factory) -> Path:
    return save_started_model(tmp_path_factory.mktemp("started") / "small.safetensors")
