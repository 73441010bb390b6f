"""Policies as files that play without this package: ONNX, or a program of `torch.export`.

A file maps raw observations to actions: scaling, masks and bounds of the actions are inside it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.learn.ensemble import members_of
from vecenv.learn.policies import ActorPolicy

Kind = Literal["onnx", "torch"]

FILES: dict[Kind, str] = {"onnx": "policy.onnx", "torch": "policy.pt2"}

INPUT, OUTPUT = "observation", "action"
"""Names of the input and the output of a file."""

Player = Callable[[Tensor], Tensor]
"""Observations to actions. Shapes: (N, D), float32 -> (N, *spec.shape)."""

CLOSE = 1e-5
"""Share of the width of its bounds by which an action may differ: sums are added in other orders."""


class ExportedPolicy(nn.Module):
    """A policy with its parameters, as a module of observations alone.

    Raises:
        ValueError: the policy is not deterministic, or the observations are not one vector.
    """

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy, env: VecEnv) -> None:
        super().__init__()
        if not env.observation_form.flat:
            raise ValueError(f"observations of {env.scenario.name} are blocks of several kinds, not one vector")
        for member in members_of(policy):
            if not (isinstance(member, ActorPolicy) and member.deterministic):
                raise ValueError(f"{type(member).__name__} draws actions, or is no network")
        self._policy = policy
        for place, tensor in enumerate(policy.parameters):
            self.register_buffer(f"parameter_{place}", tensor.detach().clone())
        self._numbers = env.scenario.action_spec.dtype.is_floating_point
        if self._numbers:
            space = env.scenario.action_spec.space
            self.register_buffer("low", space.low)
            self.register_buffer("high", space.high)

    def forward(self, observation: Tensor) -> Tensor:
        parameters = [getattr(self, f"parameter_{place}") for place in range(len(self._policy.parameters))]
        # Only policies that draw read the key and the time.
        action = self._policy.act(parameters, observation, None, None)[0]  # type: ignore[arg-type]
        return torch.clamp(action, self.low, self.high) if self._numbers else action


@torch.no_grad()
def write_policy(policy: Policy, env: VecEnv, path: Path, kind: Kind) -> None:
    """Write a policy for any number of observations at once.

    Raises:
        ImportError: ``onnx`` needs the packages of the extra ``onnx``.
        ValueError: as of `ExportedPolicy`, or the policy has operations that a file of this kind cannot hold.
    """
    module = ExportedPolicy(policy, env).eval()
    observation = env.observations()[:2] if env.num_envs > 1 else env.observations().expand(2, -1)
    shapes = ({0: torch.export.Dim("batch")},)
    with _quiet(), _plain_layers(policy):
        try:
            program = torch.export.export(module, (observation.clone(),), dynamic_shapes=shapes)
            if kind == "torch":
                torch.export.save(program, path)
                return
            torch.onnx.export(
                program, (), path, input_names=[INPUT], output_names=[OUTPUT], external_data=False, verbose=False
            )
        except ImportError:
            raise
        except Exception as error:
            told = str(error).strip().partition("\n")[0]
            raise ValueError(f"this policy cannot be exported to {kind}: {told}") from error


def read_policy(path: Path) -> Player:
    """Return the function of a file, run by onnxruntime or by PyTorch on the CPU.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: the file is not one of `write_policy`.
    """
    try:
        if path.suffix == ".pt2":
            with _quiet():
                return torch.no_grad()(torch.export.load(path).module())
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not a policy's file, or a damaged one") from error
    return lambda observation: torch.from_numpy(session.run([OUTPUT], {INPUT: observation.numpy()})[0])


def differing(own: Tensor, other: Tensor, width: Tensor | None) -> Tensor:
    """Return which of N actions differ. Shapes: (N, *spec.shape), (*spec.shape) -> (N,), bool.

    Numbers differ by more than `CLOSE` of the ``width`` of their bounds, choices, without one, at all.
    """
    same = own == other if width is None else (own - other).abs() <= CLOSE * width
    # What is no number differs.
    return ~same.flatten(1).all(-1)


@contextlib.contextmanager
def _plain_layers(policy: Policy) -> Iterator[None]:
    """Let networks multiply by PyTorch's own operator within the context: no other program knows this package's."""
    networks = [member.network for member in members_of(policy) if isinstance(member, ActorPolicy)]
    for network in networks:
        network.linear = functional.linear
    try:
        yield
    finally:
        for network in networks:
            del network.linear


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what exporters print about their own work."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
