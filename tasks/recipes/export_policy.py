"""Export: a trained policy as an ONNX file that plays without vecenv (extra `onnx`)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

small = "--preset quick --market synthetic --no-compile --num-envs 16 --episodes 8 --learner.total-frames 1024"
vecenv = [sys.executable, "-m", "vecenv"]
subprocess.run(
    [*vecenv, "train", *small.split(), "--learner.minibatches", "2", "--folder", "runs/exported"], check=True
)
subprocess.run([*vecenv, "export", "--checkpoint", "runs/exported", "--observations", "100"], check=True)

# From here on nothing of vecenv is needed.
folder = Path("runs/exported/export-onnx")
manifest = json.loads((folder / "manifest.json").read_text())
recorded = np.load(folder / "observations.npz")
session = onnxruntime.InferenceSession(folder / "policy.onnx")
(action,) = session.run(["action"], {"observation": recorded["observation"]})
print([column["name"] for column in manifest["input"]["columns"]][:4], np.abs(action - recorded["action"]).max())
