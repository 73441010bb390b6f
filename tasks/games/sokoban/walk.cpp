// Walks that make boards by reverse play: those of `walked` in boards.py, bit for bit, one board after the other.

#include <cstdint>
#include <cstring>

namespace {

constexpr int LARGEST = 10 * 10;

struct Draws {
    uint32_t key[2], env_id, episode;

    // Words of a stream: words 0, 1, 2 and 3 of all blocks, one after the other.
    void operator()(uint32_t stream, int total, uint32_t* out) const {
        const int blocks = (total + 3) / 4;
        for (int block = 0; block < blocks; ++block) {
            uint32_t c[4] = {env_id, episode, stream, uint32_t(block)}, k[2] = {key[0], key[1]};
            for (int round = 0; round < 10; ++round) {
                const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
                c[0] = uint32_t(b >> 32) ^ c[1] ^ k[0];
                c[2] = uint32_t(a >> 32) ^ c[3] ^ k[1];
                c[1] = uint32_t(b);
                c[3] = uint32_t(a);
                k[0] += 0x9E3779B9u;
                k[1] += 0xBB67AE85u;
            }
            for (int word = 0; word < 4; ++word) out[word * blocks + block] = c[word];
        }
    }
};

int back(int direction) { return ((direction - 1) ^ 1) + 1; }

}  // namespace

extern "C" void walks_back(
    int32_t height, int32_t width, int32_t words, int32_t size, int32_t boxes, int32_t depth, int32_t carving,
    int64_t least, uint32_t stream, int64_t rows, const int64_t* keys, int64_t* sets, uint8_t* moves, int64_t* pulls,
    uint8_t* made) {
    const int cells = height * width, step[5] = {0, -width, width, -1, 1};
    int inner[LARGEST], count = 0;
    bool inside[LARGEST] = {};
    uint32_t drawn[1024];
    for (int row = 1; row < height - 1; ++row)
        for (int column = 1; column < width - 1; ++column) inside[inner[count++] = row * width + column] = true;

    for (int64_t at_row = 0; at_row < rows; ++at_row) {
        const int64_t* key = keys + 4 * at_row;
        const Draws draw{{uint32_t(key[0]), uint32_t(key[1])}, uint32_t(key[2]), uint32_t(key[3])};
        bool floor[LARGEST] = {}, target[LARGEST] = {}, box[LARGEST] = {};
        if (carving) {
            draw(stream + 1, carving + 1, drawn);
            int at = inner[uint64_t(drawn[0]) * count >> 32], direction = int(drawn[0] & 3) + 1;
            for (int number = 1; number <= carving; ++number) {
                const uint32_t word = drawn[number];
                if ((word & 0xFF) < 90) direction = int(word >> 8 & 3) + 1;
                if (inside[at + step[direction]]) at += step[direction];
                const int side = int(word >> 10 & 3) + 1;
                const int corner = (side <= 2 ? 3 : 1) + int(word >> 12 & 1);
                const int two[3] = {0, step[side], step[word >> 13 & 1 ? corner : back(side)]};
                for (int one : two) floor[at + one] = floor[at + one] || inside[at + one];
            }
        } else {
            draw(stream + 1, count, drawn);
            for (int place = 0; place < count; ++place) floor[inner[place]] = drawn[place] >= least;
        }
        draw(stream, count, drawn);
        int64_t chance[LARGEST] = {};
        int player = inner[0];
        for (int place = 0; place < count; ++place) {
            const int cell = inner[place];
            chance[cell] = floor[cell] ? int64_t(drawn[place]) + 1 : 0;
            if (chance[cell] > chance[player]) player = cell;
        }
        // Fill what the player cannot reach, by layers.
        int queue[LARGEST], layer[LARGEST], seen = 0;
        bool reached[LARGEST] = {};
        if (floor[player]) reached[queue[seen++] = player] = true, layer[player] = 0;
        for (int next = 0; next < seen; ++next)
            for (int direction = 1; direction <= 4; ++direction) {
                const int cell = queue[next] + step[direction];
                if (floor[cell] && !reached[cell] && layer[queue[next]] < cells / 2)
                    reached[queue[seen++] = cell] = true, layer[cell] = layer[queue[next]] + 1;
            }
        std::memcpy(floor, reached, sizeof floor);
        bool enough = true;
        for (int number = 0; number < boxes; ++number) {
            int best = -1;
            for (int place = 0; place < count; ++place) {
                const int cell = inner[place];
                bool leavable = false;
                for (int direction = 1; direction <= 4; ++direction)
                    leavable |= floor[cell + step[direction]] && floor[cell + 2 * step[direction]];
                if (!floor[cell] || !leavable || cell == player || target[cell]) continue;
                if (best < 0 || chance[cell] > chance[best]) best = cell;
            }
            enough &= best >= 0;
            if (best >= 0) target[best] = box[best] = true;
        }
        made[at_row] = 0;
        if (!enough) continue;

        bool kept_box[LARGEST];
        std::memcpy(kept_box, box, sizeof box);
        int kept_player = player, kept_away = 0, length = 0, direction = 1, away = 0;
        int64_t pulled_so_far = 0, kept_pulls = 0;
        uint8_t walked[1024];
        draw(stream + 2, depth, drawn);
        for (int number = 0; number < depth; ++number) {
            const uint32_t word = drawn[number];
            int takes = 0, moving = 0, able = 0;
            for (int one = 1; one <= 4; ++one) {
                const int ahead = player + step[one], behind = player - step[one];
                if (!floor[ahead] || box[ahead]) continue;
                able |= 1 << (one - 1);
                if (box[behind] && !target[player]) (target[behind] ? takes : moving) |= 1 << (one - 1);
            }
            const bool take = takes && (word & 7), pull = !take && moving && (word >> 3 & 7) < 3;
            const int choices = take ? takes : pull ? moving : able, turn = int(word >> 6 & 3);
            const int turned = (choices >> turn | choices << (4 - turn)) & 15;
            const int lowest = turned & 1 ? 0 : turned & 2 ? 1 : turned & 4 ? 2 : 3;
            const bool straight = (word >> 8 & 1) && (choices >> (direction - 1) & 1);
            if (!straight) direction = ((lowest + turn) & 3) + 1;
            walked[number] = choices ? uint8_t(direction) : 0;
            if (take || pull) {
                const int behind = player - step[direction];
                box[behind] = false, box[player] = true;
                away += take;
                ++pulled_so_far;
            }
            if (choices) player += step[direction];
            if (away >= kept_away) {
                std::memcpy(kept_box, box, sizeof box);
                kept_player = player, kept_away = away, kept_pulls = pulled_so_far, length = number + 1;
            }
        }
        made[at_row] = kept_away == boxes;
        pulls[at_row] = kept_pulls;
        uint8_t* own = moves + at_row * depth;
        for (int number = length - 1; number >= 0; --number)
            if (walked[number]) *own++ = uint8_t(back(walked[number]));
        int64_t* four = sets + at_row * 4 * words;
        for (int place = 0; place < count; ++place) {
            const int cell = inner[place], bit = (cell / width - 1) * (width - 1) + cell % width - 1;
            const bool members[4] = {floor[cell], target[cell], kept_box[cell], cell == kept_player};
            for (int set = 0; set < 4; ++set) four[set * words + bit / size] |= int64_t(members[set]) << bit % size;
        }
    }
}
