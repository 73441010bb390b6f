"""Whatever a model wraps around an answer or a call, it is the same; what changes its meaning is invalid."""

import json

import pytest

import vecenv
from vecenv.registry import make_spoken
from vecenv.tasks.agent_market.language import OrderLanguage as MarketLanguage
from vecenv.tasks.crypto_lob.text import LobLanguage
from vecenv.tasks.signals.rating.text import SignalLanguage
from vecenv.tasks.tiers.language import OrderLanguage
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.door import TextDoor
from vecenv.text.tensor_interaction import TensorInteraction
from vecenv.text.tool_calls import ToolCall, read_call

FAMILIES = {
    "tiers": (OrderLanguage({"AAA": 0, "B.B": 1}), ("BUY AAA 0.5", "SELL B.B 30%\nBUY AAA", "HOLD")),
    "market": (MarketLanguage(0.01, 100, 4), ("BUY 30 AT 99.5", "BID 5 AT 1\nASK 5 AT 2", "CANCEL")),
    "books": (LobLanguage(0.1, 1e-4, 200, resting=True), ("SELL .5", "CLOSE\nBID 1 AT 5", "HOLD")),
    "signals": (SignalLanguage(("AAA", "B.B")), ("AAA: +4", "AAA: -3\nB.B: 10", "B.B: 0")),
}
DRESSES = {
    "fence": "```\n{}\n```",
    "fence with a language": "```json\n{}\n```\n",
    "bold": lambda line: f"**{line}**",
    "italic": lambda line: f"_{line}_",
    "code": lambda line: f"`{line}`",
    "bullet": lambda line: f"- {line}",
    "round bullet": lambda line: f"\u2022 {line}",
    "round bullet at a number": lambda line: line.replace(": ", ": \u2022"),
    "number": lambda line: f"1. {line}",
    "heading": "### Orders\n\n{}",
    "full stop": lambda line: f"{line}.",
    "curly quotes": "\u201c{}\u201d",
    "quotation": lambda line: f"> {line}",
    "prefix": "**Final Answer:**\n{}",
    "prefix on the line": "Action: {}",
    "end of a turn": "{}<|im_end|>",
    "end of a turn, and the next": "{}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nnonsense",
    "end of a text": "<|im_start|>assistant\n{}</s>",
    "thought": "<thinking>HOLD? AAA: 9</thinking>\n{}",
    "channels": "<|channel|>analysis<|message|>HOLD?<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>",
    "answer": "So be it. <Answer>\n{}\n</answer> Good luck!",
    "box": "The answer is \\boxed{{{}}}.",
    "all": lambda line: f"> 1) **{line}**.",
    "lower case, blank lines, CRLF": lambda line: f"\r\n\r\n  {line.lower()} \r\n",
    "blanks that do not break": lambda line: line.replace(" ", "\u00a0\u200b"),
    "minus": lambda line: line.replace("-", "\u2212"),
}
CHANGED = ("~~{}~~", "{}?", "not {}", "{} or not", "no: {}; xyz", "ＸＹＺ {}", "</answer>{}<answer>", "<think>{}")
NEAR = {
    "tiers": ("BUY AAA 10", "BUY AAA 101%", "BUY AAA -0.5", "BUY AAA 0.5 now", "BUY AAAA", "I buy AAA", "BUY (AAA)"),
    "market": ("BUY 1.5", "BUY 50%", "BUY -1", "BUY 1 AT 0", "BUY ten", "BID 1 AT 1\nBID 2 AT 1"),
    "books": ("BUY 0", "BUY -1", "BUY 1 BTC", "BUY\nSELL"),
    "signals": ("AAA: 11", "AAA: 3\nAAA: 4", "AAA 4", "AAAA: 4", "AAA: high"),
}


def dressed(dress, answer: str) -> str:
    return dress.format(answer) if isinstance(dress, str) else "\n".join(map(dress, answer.split("\n")))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_dress_is_the_bare_answer_and_near_misses_stay_invalid(family):
    language, answers = FAMILIES[family]
    for answer in answers:
        assert language.parse(answer) is not None, answer
        for name, dress in DRESSES.items():
            assert language.parse(dressed(dress, answer)) == language.parse(answer), (name, answer)
        for changed in CHANGED[:6] if family != "signals" else ():
            assert language.parse(changed.format(answer)) is None, (changed, answer)
        assert language.parse(CHANGED[7].format(answer)) is None
    for near in NEAR[family]:
        for dress in ("{}", *DRESSES.values()):
            text = dressed(dress, near)
            assert language.parse(text) is None, text
            assert language.fault(text) and "\n" not in language.fault(text)
    for endless in (
        "x" * 60_000,
        "BUY AAA\n" * 7_500,
        "<|channel|>" * 10**5,
        "- " * 10**5,
        "<eos>" * 10**5,
        "\u201c" * 10**6,
    ):
        assert language.parse(endless) is None and len(language.fault(endless)) < 300


ARGUMENTS = {"symbol": "AAA", "days": 3}
OBJECT = json.dumps({"name": "price_history", "arguments": ARGUMENTS})
TEXT = json.dumps({"name": "price_history", "arguments": json.dumps(ARGUMENTS)})
FUNCTION = json.dumps({"name": "price_history", "parameters": ARGUMENTS})
OPENAI = json.dumps({"tool_calls": [{"id": "1", "type": "function", "function": json.loads(TEXT)}]})
GLM = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>"
DEEPSEEK = "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
DEEPSEEK_END = (
    "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>"
)
INVOKE = (
    '<function_calls>\n<invoke name="price_history">\n<parameter name="symbol">AAA</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</function_calls>'
)
CALLS = (
    *(OBJECT, TEXT, FUNCTION, OPENAI, f"[{OBJECT}]", json.dumps({"type": "function", "function": json.loads(OBJECT)})),
    *(f"```json\n{OBJECT}\n```", f"Let me look.\n\n{OBJECT}\nThen I decide.", f"{OBJECT}<|im_end|>", f"**{OBJECT}**"),
    *(f"I look. <tool_call>\n{TEXT}\n</tool_call>", f"<tool_call>{OBJECT}", f"<|tool_call|>[{OBJECT}]<|end_of_text|>"),
    *(f"[TOOL_CALLS] [{OBJECT}]</s>", f"[TOOL_CALLS]price_history{json.dumps(ARGUMENTS)}"),
    *(f"<function=price_history>{json.dumps(ARGUMENTS)}</function>", f"<|python_tag|>{FUNCTION}<|eom_id|>"),
    "<tool_call>\n<function=price_history>\n<parameter=symbol>\nAAA\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    '<|tool_call>call:price_history{days:3,symbol:<|"|>AAA<|"|>}<tool_call|>',
    "<start_function_call>call:price_history{symbol:<escape>AAA<escape>,days:3}<end_function_call>",
    # GLM, DeepSeek (three), Kimi, MiniMax and other invokes, gpt-oss, LFM2, Cohere.
    f"<tool_call>price_history\n{GLM.format('symbol', 'AAA')}\n{GLM.format('days', 3)}\n</tool_call>",
    f"{DEEPSEEK}function<\uff5ctool\u2581sep\uff5c>price_history\n```json\n{json.dumps(ARGUMENTS)}\n```{DEEPSEEK_END}",
    f"{DEEPSEEK}price_history<\uff5ctool\u2581sep\uff5c>{json.dumps(ARGUMENTS)}{DEEPSEEK_END}",
    INVOKE.replace("<", "<\uff5cDSML\uff5c")
    .replace("<\uff5cDSML\uff5c/", "</\uff5cDSML\uff5c")
    .replace('l">', 'l" string="true">'),
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.price_history:0<|tool_call_argument_begin|>"
    f"{json.dumps(ARGUMENTS)}<|tool_call_end|><|tool_calls_section_end|>",
    *(INVOKE, INVOKE.replace("function_calls", "minimax:tool_call")),
    "<|channel|>analysis<|message|>Well?<|end|><|start|>assistant<|channel|>commentary to=functions.price_history "
    f"<|constrain|>json<|message|>{json.dumps(ARGUMENTS)}<|call|>",
    '<|tool_call_start|>[price_history(symbol="AAA", days=3)]<|tool_call_end|>',
    f"<|START_ACTION|>[{OBJECT.replace('name', 'tool_name', 1)}]<|END_ACTION|>",
    *("price_history(symbol='AAA', days=3)", '```python\nprice_history(symbol="AAA", days=3)\n```'),
    *('[price_history(symbol="AAA", days=3)]', OBJECT.replace('"', "\u201c", 1).replace('"', "\u201d", 1)),
    *(
        "<think>" + OBJECT.replace("AAA", "B") + f"</think>{OBJECT}",
        f"Action: price_history\nAction Input: {json.dumps(ARGUMENTS)}",
    ),
    f"**Action:** `price_history`\n**Action Input:** ```json\n{json.dumps(ARGUMENTS)}\n```\nObservation: rising",
    f"Thought: look\naction: price_history\naction input: {json.dumps(json.dumps(ARGUMENTS))}",
)
FAULTS = {
    '{"name": "a", "name": "b"}': "a key stands twice",
    '{"name": "a", "tool": "b"}': "names two tools",
    '{"name": "a", "arguments": "3"}': "must be a JSON object",
    "price_history('AAA')": "arguments must have their names",
    "price_history(days=1, days=2)": "a key stands twice",
    "<function=a><parameter=days>1</parameter><parameter=days>2</parameter></function>": "a key stands twice",
    f"Look: {OBJECT[:-3]}": "must be a JSON object",
}


@pytest.mark.parametrize("form", ["json", "react"])
def test_every_notation_is_the_same_call(form):
    for text in CALLS:
        call = read_call(text, form)
        assert call is not None, text
        assert (call.name, {**call.arguments, "days": int(call.arguments["days"])}) == ("price_history", ARGUMENTS), (
            text
        )
        assert call.further == 0 and not call.fault
    assert read_call("<tool_call>position</tool_call>", form) == ToolCall("position")
    for text, fault in FAULTS.items():
        assert fault in read_call(text, form).fault
    for answer in (
        "BUY AAA 0.5",
        "```\nHOLD\n```",
        "Action: BUY" if form == "json" else "Final Answer: BUY",
        '["BUY"]',
    ):
        assert read_call(answer, form) is None
    assert read_call("Action: a\nObservation: 1\nAction: b\nFinal Answer: BUY", "react").further == 1


def test_agents_are_told_what_was_dropped_and_why_an_answer_was_none():
    market = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ("signal",)}
    env = vecenv.make("single_stock_costs", 1, **market, days=9, action="orders", compile=False)
    rows = Dialogue(TensorInteraction(env), TextRules(tools=("all",), turns=2))
    rows.begin([0])
    assert "A number is a share, from 0 to 1 or from 0% to 100%." in rows.instructions([0])[0]
    call = '<tool_call>{"name": "position", "arguments": "{}"}</tool_call>'
    (turn,) = rows.answer([0], [f"{call}{call}\nBUY 0.5"])
    assert turn.shown.split("\n") == [
        "RELIANCE: no shares",
        "Only the first of 2 calls was made: call one tool at a time.",
        "The answer beside the call was not carried out.",
    ]
    for said, why in (
        (call, "it calls a tool, but no call was left."),
        ("BUY RELIANCE 10", "'10' is no share: 0 to 1, or 0% to 100%."),
        ("Buy infy 30%", "there is no 'infy', only RELIANCE."),
        ("BUY INFY 10", "there is no 'INFY', only RELIANCE, and '10' is no share: 0 to 1, or 0% to 100%."),
        ("buy reliance ten", "'ten' is no share: 0 to 1, or 0% to 100%."),
        (
            "I'd, rather, buy.",
            "'I'd, rather, buy' is no order: write HOLD, BUY SYMBOL SHARE or SELL SYMBOL SHARE, and nothing else.",
        ),
    ):
        (turn,) = rows.answer([0], [said])
        assert not turn.valid and turn.message.endswith(f"\nYour last answer was invalid and did nothing: {why}")
    assert rows.answer([0], ["```\n- **BUY** RELIANCE 50%.\n```"])[0].acted
    # Arguments in words are those that the tool declares.
    market = make_spoken("agent_market", 1)
    tools = TextDoor(market).text.tools(("all",))
    told = [
        tools.results(market.state, [ToolCall("cost", {"side": "buy", "shares": n})], None)[0] for n in ("3", 3, 3.0)
    ]
    assert len(set(told)) == 1 and "3 shares" in told[0]
