// The features of many markets, as `features.features` computes them, up to rounding.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

constexpr int CANDLES = 65, LAST = CANDLES - 1, CHANGES = 64, DEPTH = 10, NUM_LAGS = 12;
constexpr int LAGS[NUM_LAGS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr int SHORT = 8, LONG = 16, BOLLINGER = 12, SURGE = 16, QUICK = 8, SLOW = 32;
constexpr float LARGEST_OF_SERIES = 0.25f;

// One market. Candles are rows of close, high, low, volume and trades; quantities those of the best bids, then asks.
struct Market {
  const int32_t *candles, *bid, *ask, *doubled_mid, *quantities;
  const int64_t *news, *estimate;
};

// Logarithms of after / before, from the change: log1p of its size by the lower price, with its sign.
template <int COUNT>
void log_returns(const float *change, const float *before, const float *after, float *result) {
  float size[COUNT], largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < COUNT; ++i) {
    size[i] = std::fabs(change[i]) / std::min(before[i], after[i]);
    largest = std::max(largest, size[i]);
  }
  if (largest > LARGEST_OF_SERIES) {
    for (int i = 0; i < COUNT; ++i) result[i] = std::copysign(std::log1p(size[i]), change[i]);
    return;
  }
  // log(1 + x) = 2 artanh(x / (2 + x)); the first term left out is below 1e-10 of the sum.
#pragma omp simd
  for (int i = 0; i < COUNT; ++i) {
    const float s = size[i] / (2 + size[i]), square = s * s;
    const float series = 1 + square * (1 / 3.f + square * (1 / 5.f + square * (1 / 7.f + square / 9)));
    result[i] = std::copysign(2 * s * series, change[i]);
  }
}

float mean(const float *values, int count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += values[i];
  return sum / float(count);
}

float root_mean_square(const float *values, int count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum / float(count));
}

// `weights` are the rows of `features.average_weights`; without `fair` what needs the public estimate is left out.
void compute(const Market &market, const float *weights, bool fair, float *shown) {
  const int32_t *candles = market.candles, last = candles[LAST];
  float relative[3][CANDLES], price[CANDLES], change[CHANGES];
  for (int row = 0; row < 3; ++row)
#pragma omp simd
    for (int i = 0; i < CANDLES; ++i)
      relative[row][i] = float(int64_t(candles[row * CANDLES + i]) - last) * 0.5f;
  const float *close = relative[0], *high = relative[1], *low = relative[2];
#pragma omp simd
  for (int i = 0; i < CANDLES; ++i) price[i] = std::max(float(candles[i]) * 0.5f, 0.5f);
#pragma omp simd
  for (int i = 0; i < CHANGES; ++i) change[i] = close[i + 1] - close[i];

  float before[NUM_LAGS], now[NUM_LAGS], since[NUM_LAGS], log_since[NUM_LAGS], log_change[SLOW];
  for (int i = 0; i < NUM_LAGS; ++i) {
    before[i] = price[LAST - LAGS[i]];
    since[i] = -close[LAST - LAGS[i]];
    now[i] = price[LAST];
  }
  log_returns<NUM_LAGS>(since, before, now, log_since);
  log_returns<SLOW>(change + CHANGES - SLOW, price + LAST - SLOW, price + CANDLES - SLOW, log_change);

  float ema_short = 0, ema_long = 0, signal = 0, gains = 0, losses = 0, atr = 0;
  const float *wilder = weights + 3 * CANDLES + 1;
#pragma omp simd reduction(+ : ema_short, ema_long, signal)
  for (int i = 0; i < CANDLES; ++i) {
    ema_short += weights[i] * close[i];
    ema_long += weights[CANDLES + i] * close[i];
    signal += weights[2 * CANDLES + i] * close[i];
  }
#pragma omp simd reduction(+ : gains, losses, atr)
  for (int i = 0; i < CHANGES; ++i) {
    gains += wilder[i] * std::max(change[i], 0.f);
    losses += wilder[i] * std::max(-change[i], 0.f);
    atr += wilder[i] * (std::max(high[i + 1], close[i]) - std::min(low[i + 1], close[i]));
  }

  const float mid = float(*market.doubled_mid) / 2, base = float(last) / 2, macd = ema_short - ema_long;
  const float moved = gains + losses, rsi = moved > 0 ? 100 * (gains / std::max(moved, 1e-9f)) : 50;
  const float *window = close + CANDLES - BOLLINGER, middle = mean(window, BOLLINGER);
  float off_middle[BOLLINGER];
  for (int i = 0; i < BOLLINGER; ++i) off_middle[i] = window[i] - middle;
  const float width = 2 * root_mean_square(off_middle, BOLLINGER);
  const float quick = root_mean_square(log_change + SLOW - QUICK, QUICK), slow = root_mean_square(log_change, SLOW);
  const bool both = *market.bid > 0 && *market.ask > 0;
  int32_t sizes[2] = {};
  for (int i = 0; i < 2 * DEPTH; ++i) sizes[i / DEPTH] += market.quantities[i];
  const float bids = float(sizes[0]), asks = float(sizes[1]);
  float volume[SURGE + 1];
  for (int i = 0; i <= SURGE; ++i) volume[i] = float(candles[3 * CANDLES + LAST - SURGE + i]);
  const float usual = mean(volume, SURGE);

  *shown++ = mid;
  for (int i = 0; i < NUM_LAGS; ++i) *shown++ = 100 * (since[i] / before[i]);
  for (int i = 0; i < NUM_LAGS; ++i) *shown++ = log_since[i];
  *shown++ = base + mean(close + CANDLES - SHORT, SHORT);
  *shown++ = base + mean(close + CANDLES - LONG, LONG);
  *shown++ = base + ema_short;
  *shown++ = base + ema_long;
  *shown++ = rsi;
  *shown++ = macd;
  *shown++ = signal;
  *shown++ = macd - signal;
  *shown++ = base + middle + width;
  *shown++ = base + middle;
  *shown++ = base + middle - width;
  *shown++ = width > 0 ? (width - middle) / std::max(2 * width, 1e-6f) : 0.5f;
  *shown++ = atr;
  *shown++ = float(int32_t(market.news[2]) > 0);
  *shown++ = float(market.news[0]);
  *shown++ = float(market.news[1]);
  *shown++ = float(int32_t(market.news[2]));
  *shown++ = both ? 1e4f * float(*market.ask - *market.bid) / std::max(mid, 0.5f) : 0;
  *shown++ = (bids - asks) / std::max(bids + asks, 1.f);
  *shown++ = quick;
  *shown++ = slow;
  *shown++ = slow > 0 ? quick / std::max(slow, 1e-12f) : 1;
  const float estimate = float(*market.estimate) * 0x1p-16f;
  const float deviation = estimate > 0 ? 100 * (mid - estimate) / std::max(estimate, 0.5f) : 0;
  if (fair) {
    *shown++ = deviation;
    *shown++ = estimate > 0 ? mid / std::max(estimate, 0.5f) : 1;
  }
  *shown++ = atr > 0 ? std::fabs(macd) / std::max(atr, 1e-6f) : 0;
  *shown++ = rsi - 50;
  *shown++ = usual > 0 ? volume[SURGE] / std::max(usual, 1e-6f) : 1;
  *shown++ = float(candles[4 * CANDLES + LAST]);
  if (fair) *shown++ = float(market.news[0]) * deviation;
}

}  // namespace

// `parts` are candles, bid, ask, doubled mid, quantities, news and estimate of the first market, and `bytes` how much further
// those of the next are. `shown` has `width` numbers a market, one after the other.
extern "C" void vecenv_agent_market_features(int64_t count, void *const *parts, const int64_t *bytes,
                                             const float *weights, int32_t fair, float *shown, int64_t width) {
  for (int64_t n = 0; n < count; ++n) {
    const auto part = [&](int number) { return static_cast<const char *>(parts[number]) + bytes[number] * n; };
    const auto narrow = [&](int number) { return reinterpret_cast<const int32_t *>(part(number)); };
    const auto wide = [&](int number) { return reinterpret_cast<const int64_t *>(part(number)); };
    compute({narrow(0), narrow(1), narrow(2), narrow(3), narrow(4), wide(5), wide(6)}, weights, fair != 0,
            shown + n * width);
  }
}
