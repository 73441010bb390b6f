"""Files of forecasting networks: safetensors, with what is needed to use them in the metadata."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from vecenv.system.atomic_files import replacing
from vecenv.tasks.crypto_lob.factors.table import FACTORS
from vecenv.tasks.crypto_lob.forecasts.fit import FitSettings, new_network
from vecenv.tasks.crypto_lob.forecasts.moves import HORIZONS
from vecenv.tasks.crypto_lob.forecasts.network import ForecastNetwork

FORMAT = "vecenv-book-forecasts"


@dataclass(frozen=True, eq=False)
class ForecastModel:
    """A network in evaluation mode, and what it was fitted to.

    ``seen_until`` is the time in milliseconds of the latest price that it was fitted to, ``step_gap`` in seconds.
    """

    network: ForecastNetwork
    settings: FitSettings
    step_gap: float
    seen_until: int
    source: str

    def save(self, path: Path) -> None:
        """Write the model; an interruption leaves the file before."""
        record = {
            "settings": asdict(self.settings),
            "step_gap": self.step_gap,
            "seen_until_ms": self.seen_until,
            "source": self.source,
            "factors": list(FACTORS),
            "horizons": list(HORIZONS),
        }
        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        whole = save(tensors, {"format": FORMAT, "record": json.dumps(record)})
        with replacing(path) as partial:
            partial.write_bytes(whole)

    @classmethod
    def load(cls, path: Path) -> ForecastModel:
        """Read a model.

        Raises FileNotFoundError if there is no such file, ValueError if it is of another kind, damaged, or of other
        factors or horizons.
        """
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such model; vecenv factors train writes one")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: no model of vecenv factors, or a damaged one ({error})") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path}: not a model of vecenv factors")
        record = json.loads(metadata["record"])
        if record["factors"] != list(FACTORS) or record["horizons"] != list(HORIZONS):
            raise ValueError(f"{path}: of other factors or horizons than this version's; train it again")
        settings = FitSettings(**record["settings"])
        network = new_network(settings, len(FACTORS), len(HORIZONS))
        network.load_state_dict(tensors)
        return cls(network.eval(), settings, record["step_gap"], record["seen_until_ms"], record["source"])
