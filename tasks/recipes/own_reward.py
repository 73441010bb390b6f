"""My reward: the change of the account's value, less a price for what is held in a single stock."""

import vecenv
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.scenario import StockTrading


class Spread(StockTrading):
    """Rules, prices and account as they are; the reward alone is another."""

    name = "spread"

    def reward(self, state, action, next_state, params, shared):
        own = super().reward(state, action, next_state, params, shared)
        close = shared["close"][self.reference(next_state)]
        weights = next_state.holdings * close / next_state.portfolio_value
        return own - 0.001 * weights.amax().float()


env = vecenv.make("stock_trading", num_envs=64, market="synthetic", action="tilt", compile=False)
mine = vecenv.VecEnv(Spread(env.scenario.tape, StockTradingConfig(action="tilt")), num_envs=64, compiled=False)

for name, each in (("as it is", env), ("mine", mine)):
    trained = vecenv.train(each, PPOConfig(num_steps=16, total_frames=4096, minibatches=2, policy="symbol"))
    print(name, trained.learner.env.grade().mean())
