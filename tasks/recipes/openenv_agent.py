"""An agent over OpenEnv: a server of one task, and a client that answers in words (extra `openenv`)."""

import re
import subprocess
import sys

from vecenv.adapters.openenv import TextAction, TextClient

serve = [sys.executable, "-m", "vecenv", "serve", "--task", "single_stock", "--market", "synthetic", "--no-compile"]
serve += ["--port", "0", "--env.days", "5"]
server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
try:
    said = next(line for line in server.stdout if "http://" in line)  # Serving … at http://127.0.0.1:PORT, …
    address = re.search(r"http://[\d.:]+", said)[0]
    with TextClient(base_url=address).sync() as client:
        result = client.reset(split="train", index=3)  # equal names are equal episodes: a group for GRPO
        print(result.observation.instructions[:300])
        while not result.done:
            print(result.observation.text[:100].replace("\n", " "))
            result = client.step(TextAction(text="BUY 0.5"))  # here stands what your model says
        print("reward", result.reward)
finally:
    server.terminate()
    server.wait()
