"""A language model by a GRPO loop of my own: groups over one start, transformers' generate (extra `language`)."""

import sys

import torch
from torch.nn.functional import cross_entropy

from vecenv import Dialogue, Episode, make_interaction
from vecenv.language.models import load_model
from vecenv.text.dialogue import TextRules

model, tokenizer = load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
tokenizer.padding_side, optimizer = "left", torch.optim.AdamW(model.parameters(), lr=1e-5)
groups, members, rules = 2, 4, TextRules(format_penalty=-0.1)
rows = list(range(groups * members))
dialogue = Dialogue(make_interaction("frozen_lake", len(rows), slip=0.0, max_steps=4, compile=False), rules)
# Members of a group begin the same episode.
last = dict(enumerate(dialogue.begin(rows, [Episode(seed=0, index=row // members) for row in rows])))
talks = [[{"role": "system", "content": told}] for told in dialogue.instructions(rows)]
earned, sampled = torch.zeros(len(rows)), []
while playing := [row for row in rows if not last[row].done]:
    for row in playing:
        talks[row].append({"role": "user", "content": last[row].message})
    texts = [tokenizer.apply_chat_template(talks[row], tokenize=False, add_generation_prompt=True) for row in playing]
    asked = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    width = asked["input_ids"].shape[1]
    tokens = model.generate(**asked, max_new_tokens=8, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    ended = (tokens[:, width:] == tokenizer.eos_token_id).long()
    drawn = ended.cumsum(1) == ended  # up to the mark of the end
    sampled.append((playing, tokens, torch.cat([asked["attention_mask"], drawn], 1), drawn))
    said = tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)
    for row, text, turn in zip(playing, said, dialogue.answer(playing, said), strict=True):
        talks[row].append({"role": "assistant", "content": text})
        last[row], earned[row] = turn, earned[row] + turn.reward
# The world failed, not the agent: such a row is left out.
known = earned.masked_fill(torch.tensor([last[row].failed for row in rows]), torch.nan).view(groups, members)
above = known - known.nanmean(1, keepdim=True)
advantage = (above / (above.square().nanmean(1, keepdim=True).sqrt() + 1e-4)).nan_to_num().flatten()
for playing, tokens, attention, drawn in sampled:
    logits = model(tokens, attention_mask=attention).logits[:, -drawn.shape[1] - 1 : -1]
    log_prob = -cross_entropy(logits.mT, tokens[:, -drawn.shape[1] :], reduction="none")
    (-(advantage[playing, None] * log_prob * drawn).sum() / len(rows)).backward()
optimizer.step()
print(*(f"{message['role']}: {message['content']}" for message in talks[0]), known, advantage, sep="\n")
