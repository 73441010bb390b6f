"""TorchRL: a `ChatEnv` whose rows are text agents, so that its collectors and `GRPOLoss` run unchanged.

All rows advance as one tensor step per turn. Rows of a group share path and start, and ``query`` identifies the group
for `MCAdvantage`. Each turn is trained on with the tokens that the model read and sampled::

    set_list_to_stack(True).set()  # TorchRL's own condition on every process that has chats
    env = GroupChatEnv("single_stock_costs", num_groups=8, group_size=4, market="planted")
    policy = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="history", chat_template_name="chatml_format",
        generate_kwargs={"max_new_tokens": 32, "do_sample": True, "top_k": len(tokenizer)},
    )
    scores = TransformersWrapper(model, tokenizer=tokenizer, input_mode="tokens", generate=False)
    buffer = ReplayBuffer(
        storage=LazyStackStorage(640), sampler=SamplerWithoutReplacement(), batch_size=32,
        transform=MCAdvantage(grpo_size=4, trajectory_return="sum"),
    )
    collector = LLMCollector(
        env, policy=policy, replay_buffer=buffer, dialog_turns_per_batch=640, yield_completed_trajectories=True,
        postproc=torch.no_grad()(RetrieveLogProb(scores, assistant_only=False)),
    )
    loss = GRPOLoss(scores, masking_strategy="sft")
    loss.set_keys(sample_log_prob=("next", "log_probs", "full"))

Cheaper, with one sequence per episode, is to keep last turns only: ``yield_only_last_steps=True`` and `MCAdvantage`
without ``trajectory_return``, scores in history mode and ``masking_strategy="rlhf"``. That re-encodes the answers,
which may give other tokens than were sampled, and does not train stop tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Composite, NonTensor, Unbounded
from torchrl.data.llm import History
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm.policies import ChatHistory

from vecenv.learn.group_episodes import EpisodeReward, episode_outcome
from vecenv.registry import make_spoken
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Turn
from vecenv.text.tensor_interaction import TensorInteraction


class GroupChatEnv(ChatEnv):
    """Groups of text agents as a TorchRL chat in history mode. Batch: (N,).

    A turn is a day, and a conversation an episode. TorchRL's wrappers require conversations with equal numbers of
    messages, so the conversations of all rows begin and end together: a row whose episode ends early repeats its last
    day, and its answers have no effect.

    Args:
        task: installed task with text.
        num_groups: number of groups, one episode each.
        group_size: consecutive rows per group; N = num_groups × group_size.
        reward: reward settings; all of it is paid on the last turn, since some losses use that turn only.
        seed: of the episodes and all draws in them.
        **options: further arguments of `vecenv.make`.

    Raises:
        ValueError: the task has no text, or there are no rows.
    """

    def __init__(
        self,
        task: str,
        num_groups: int,
        group_size: int,
        reward: EpisodeReward | None = None,
        seed: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        if min(num_groups, group_size) < 1:
            raise ValueError(f"{num_groups} groups of {group_size} have no rows")
        env = make_spoken(task, num_groups * group_size, **options)
        env.reset_groups(num_groups, group_size, seed)
        super().__init__(input_mode="history", batch_size=env.batch_size)
        # Not registered as a submodule: module operations such as ``to`` and ``state_dict`` must not reach it.
        dialogue = Dialogue(TensorInteraction(env), TextRules(grade=0.0, steps=1.0))
        self.__dict__["vec_env"], self.__dict__["dialogue"] = env, dialogue
        self.worth, self.ids = reward or EpisodeReward(), range(env.num_envs)
        self._shown: list[Turn] = []
        self._earned = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)

    def _make_specs(self) -> None:
        super()._make_specs()
        shape = self.batch_size
        # `ChatEnv` takes the query from a data set; here the environment provides it.
        self.full_state_spec = Composite(shape=shape)
        self.full_observation_spec["query"] = NonTensor(example_data="0/0/0", shape=shape)
        # With a dimension for the tokens, over which `GRPOLoss` broadcasts advantages.
        self.reward_spec = Unbounded((*shape, 1, 1))
        flags = {name: Binary(1, (*shape, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(flags, shape=shape)

    def _set_seed(self, seed: int | None) -> None:
        self.vec_env.set_seed(seed, static_seed=True)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:  # noqa: ANN401
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        if chosen is not None and not bool(chosen.all()):
            raise ValueError("rows of a chat begin together: TorchRL needs conversations of equal numbers of messages")
        self.vec_env.restart(torch.ones(self.batch_size, dtype=torch.bool, device=self.vec_env.device))
        self._earned.zero_()
        self._shown = list(self.dialogue.begin(self.ids))
        opening = [self.dialogue.instructions(self.ids), [turn.message for turn in self._shown]]
        return self._told(_messages(("system", "user"), opening), over=False)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        prompt, full = tensordict["history"].prompt, tensordict["history"].full
        answers = [_said(row) for row in full[:, prompt.shape[1] :].unbind(0)]
        ended = self.vec_env.rows.done.tolist()
        playing = [row for row in self.ids if not ended[row]]
        for row, turn in zip(playing, self.dialogue.answer(playing, [answers[row] for row in playing]), strict=True):
            self._shown[row] = turn
            self._earned[row] += self.worth.steps * turn.reward
        over = bool(self.vec_env.rows.done.all())
        # Not the full history: a placeholder message would keep TorchRL from reading the next answer.
        said = _messages(("assistant", "user"), [answers, [turn.message for turn in self._shown]])
        told = self._told(prompt.extend(said, inplace=False, dim=-1), over)
        paid = torch.zeros_like(self._earned)
        if over:
            parts, _ = episode_outcome(self.vec_env.engine.bound(), self.vec_env.rows, self.worth)
            paid = sum(parts.values(), self._earned)
        return told.set("reward", paid.float().cpu()[:, None, None])

    def _told(self, prompt: History, over: bool) -> TensorDictBase:
        """Return the rows' chat data as the lazy stack that TorchRL's wrappers require."""
        rows, seed = self.vec_env.rows, int(self.vec_env.seed_tensor)
        flags = {"done": rows.done, "terminated": rows.terminated, "truncated": rows.truncated}
        told = TensorDict({name: flag.cpu()[:, None] & over for name, flag in flags.items()}, self.batch_size)
        episodes = zip(self.vec_env.start_ids.tolist(), rows.episode.tolist(), strict=True)
        told.set("query", [f"{seed}/{start}/{episode}" for start, episode in episodes])
        return told.set("history", ChatHistory(prompt=prompt, batch_size=self.batch_size)).to_lazystack(0)


def _messages(roles: Sequence[str], texts: Sequence[Sequence[str]]) -> History:
    """Return a message of each role for each row, from their texts by role. Batch: (N, roles)."""
    rows = [list(row) for row in zip(*texts, strict=True)]
    return History(role=[list(roles) for _ in rows], content=rows, batch_size=(len(rows), len(roles)))


def _said(messages: History) -> str:
    """Return the contents of one row's messages, without TorchRL's padding messages."""
    said = zip(messages.role, messages.content, strict=True)
    return "\n".join(content for role, content in said if role != "<none>")
