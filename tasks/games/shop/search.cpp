// BM25 search on a CPU: the scores of a query by the posting lists of its words, and the best documents.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

// query (rows, words), asked (rows), first (vocabulary + 1): where the postings of a word begin. found (rows, most) has
// the best documents of the rows that are asked for, of equal scores the first, and is left as it is behind them.
extern "C" void vecenv_shop_search(int64_t rows, int64_t words, int64_t vocabulary, int64_t documents, int64_t most,
                                   const int64_t* query, const bool* asked, const int32_t* first,
                                   const int32_t* document, const int32_t* impact, int64_t* found) {
    std::vector<int32_t> score(documents);
    std::vector<int64_t> best;
    for (int64_t row = 0; row < rows; ++row) {
        if (!asked[row]) continue;
        std::fill(score.begin(), score.end(), 0);
        for (int64_t place = 0; place < words; ++place) {
            const int64_t word = query[row * words + place];
            if (word < 0 || word >= vocabulary) continue;
            for (int32_t posting = first[word]; posting < first[word + 1]; ++posting)
                score[document[posting]] += impact[posting];
        }
        // A heap of the best, the worst on top: one number a document, so that there are no ties.
        best.clear();
        int64_t least = documents - 1;
        for (int64_t number = 0; number < documents; ++number) {
            const int64_t own = static_cast<int64_t>(score[number]) * documents + (documents - 1 - number);
            if (own <= least) continue;
            if (static_cast<int64_t>(best.size()) == most) {
                std::pop_heap(best.begin(), best.end(), std::greater<>());
                best.pop_back();
            }
            best.push_back(own);
            std::push_heap(best.begin(), best.end(), std::greater<>());
            if (static_cast<int64_t>(best.size()) == most) least = best.front();
        }
        std::sort(best.begin(), best.end(), std::greater<>());
        for (size_t place = 0; place < best.size(); ++place)
            found[row * most + place] = documents - 1 - best[place] % documents;
    }
}
