#include "turbotune/tuner/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "turbotune/tuner/measure.h"

namespace turbotune {

namespace {

constexpr double kMedianEfficiency = 1.2533;  // standard error of a median over that of a mean, normal noise
constexpr double kMadToDeviation = 1.4826;

double robust_deviation(const std::vector<double>& samples) {
    double median = median_of(samples);
    std::vector<double> deviations;
    for (double sample : samples) deviations.push_back(std::abs(sample - median));
    return kMadToDeviation * median_of(deviations);
}

// Mean without the outer tenths: nearly as sharp as a mean, nearly as deaf to outliers as a median.
struct TrimmedMean {
    double value = 0;
    double error = 0;  // standard error, from the winsorized variance

    explicit TrimmedMean(std::vector<double> samples) {
        std::sort(samples.begin(), samples.end());
        std::size_t n = samples.size(), cut = n / 10;
        double low = samples[cut], high = samples[n - 1 - cut], squares = 0;
        value = std::accumulate(samples.begin() + std::ptrdiff_t(cut), samples.end() - std::ptrdiff_t(cut), 0.0) /
                double(n - 2 * cut);
        double winsorized = 0;
        for (double& sample : samples) winsorized += sample = std::clamp(sample, low, high);
        winsorized /= double(n);
        for (double sample : samples) squares += (sample - winsorized) * (sample - winsorized);
        double kept = double(n - 2 * cut) / double(n);
        error = std::sqrt(squares / double(std::max<std::size_t>(n, 2) - 1)) / (kept * std::sqrt(double(n)));
    }
};

class Search {
  public:
    Search(CandidateTimer& timer, const std::vector<SearchCandidate>& candidates, const SearchOptions& options)
        : timer_(timer), candidates_(candidates), options_(options), samples_(candidates.size()) {
        result_.latencies.resize(candidates.size());
    }

    SearchResult run();

  private:
    std::vector<int> hopeful() const;
    bool round(std::vector<int>& field, int samples);
    double center(int c) const { return median_of(samples_[std::size_t(c)]); }
    double standard_error(int c) const;
    void drop_slower_half(std::vector<int>& field) const;
    void final_round(std::vector<int>& field);
    struct Ratio;
    Ratio ratio(int c, int best) const;
    int fastest(const std::vector<int>& field) const;
    int pick(const std::vector<int>& field) const;
    int affordable(const std::vector<int>& field, int samples) const;
    // How much slower than the best a candidate may be and still tie.
    double tie(int c) const { return candidates_[std::size_t(c)].incumbent ? options_.stay : options_.tie_least; }

    CandidateTimer& timer_;
    const std::vector<SearchCandidate>& candidates_;
    const SearchOptions& options_;
    std::vector<std::vector<double>> samples_;  // of the rounds so far; begun anew for the final
    double spent_ms_ = 0;
    SearchResult result_;
};

std::vector<int> Search::hopeful() const {
    double best = 0;
    for (const SearchCandidate& candidate : candidates_)
        if (candidate.estimate_ms > 0 && (best == 0 || candidate.estimate_ms < best)) best = candidate.estimate_ms;
    std::vector<int> field;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
        if (best == 0 || candidates_[i].incumbent || candidates_[i].estimate_ms <= best * (1 + options_.hopeless))
            field.push_back(int(i));
    return field;
}

// Samples that the rest of the budget pays for: never under three, which is enough for a median.
int Search::affordable(const std::vector<int>& field, int samples) const {
    double one_turn = 0;
    for (int c : field)
        one_turn += samples_[std::size_t(c)].empty() ? candidates_[std::size_t(c)].estimate_ms : center(c);
    // A sample is a batch of at least 0.2 ms.
    one_turn = std::max(one_turn, 0.2 * double(field.size()));
    double turns = (options_.budget_ms - spent_ms_) / one_turn;
    return int(std::clamp(turns, 3.0, double(samples)));
}

// False when nothing more may be timed.
bool Search::round(std::vector<int>& field, int samples) {
    if (field.empty()) return false;
    if (timer_.interrupted()) {
        result_.interrupted = true;
        return false;
    }
    samples = affordable(field, samples);
    auto taken = timer_.round(field, samples);
    std::vector<int> left;
    for (std::size_t i = 0; i < field.size(); ++i) {
        std::vector<double>& all = samples_[std::size_t(field[i])];
        if (taken[i].size() < 2) {
            all.clear();
            result_.latencies[std::size_t(field[i])] = {};
            continue;
        }
        left.push_back(field[i]);
        all.insert(all.end(), taken[i].begin(), taken[i].end());
        for (double ms : taken[i]) spent_ms_ += std::max(ms, 0.2);
        result_.latencies[std::size_t(field[i])] = summarize(all);
    }
    field = left;
    return spent_ms_ < options_.budget_ms;
}

double Search::standard_error(int c) const {
    const auto& samples = samples_[std::size_t(c)];
    return kMedianEfficiency * robust_deviation(samples) / std::sqrt(double(samples.size()));
}

void Search::drop_slower_half(std::vector<int>& field) const {
    std::stable_sort(field.begin(), field.end(), [&](int a, int b) { return center(a) < center(b); });
    int best = field.front();
    std::size_t half = std::max<std::size_t>((field.size() + 1) / 2, std::size_t(options_.finalists));
    std::vector<int> kept;
    for (std::size_t i = 0; i < field.size(); ++i) {
        // Three standard errors of the difference: a true best is all but never dropped by bad luck.
        double noise = 3 * std::hypot(standard_error(field[i]), standard_error(best));
        if (i < half || candidates_[std::size_t(field[i])].incumbent ||
            center(field[i]) <= center(best) * (1 + options_.near) + noise)
            kept.push_back(field[i]);
    }
    field = kept;
}

// How one finalist stands to another over the turns that both took part in.
struct Search::Ratio {
    double excess = 0;  // mean of the ratios - 1
    double error = 0;   // its standard error
};

Search::Ratio Search::ratio(int c, int best) const {
    const auto &mine = samples_[std::size_t(c)], &theirs = samples_[std::size_t(best)];
    std::vector<double> ratios;
    for (std::size_t i = 0; i < mine.size(); ++i) ratios.push_back(mine[i] / theirs[i]);
    TrimmedMean mean(std::move(ratios));
    return {mean.value - 1, mean.error};
}

int Search::fastest(const std::vector<int>& field) const {
    // Sharper than the median, and as safe.
    std::vector<double> means;
    for (int c : field) means.push_back(TrimmedMean(samples_[std::size_t(c)]).value);
    return field[std::size_t(std::min_element(means.begin(), means.end()) - means.begin())];
}

// Adds samples until it is clear of everybody whether it ties with the best; whoever clearly does not leaves on the
// way.
void Search::final_round(std::vector<int>& field) {
    constexpr double kClear = 4.5, kGone = 4;  // standard errors; more than usual, since it is asked again and again
    for (int c : field) samples_[std::size_t(c)].clear();  // pairs need samples of the same turns
    for (int step = options_.final_samples; field.size() > 1;) {
        bool more = round(field, step);
        if (field.size() < 2 || result_.interrupted) return;
        int best = fastest(field);
        bool clear = true, precise = true;
        std::vector<int> kept;
        for (int c : field) {
            Ratio r = ratio(c, best);
            if (c != best && r.excess > tie(c) + kGone * r.error) continue;
            kept.push_back(c);
            clear = clear && (c == best || std::abs(r.excess - tie(c)) > kClear * r.error);
            precise = precise && r.error <= options_.precision;
        }
        field = kept;
        int have = int(samples_[std::size_t(best)].size());
        if (!more || clear || precise || have >= options_.most_samples) return;
        step = std::min(have, options_.most_samples - have);
    }
}

int Search::pick(const std::vector<int>& field) const {
    int best = fastest(field);
    auto precedes = [&](int a, int b) {
        const bool stays = candidates_[std::size_t(a)].incumbent;
        if (stays != candidates_[std::size_t(b)].incumbent) return stays;
        int ra = candidates_[std::size_t(a)].registers, rb = candidates_[std::size_t(b)].registers;
        return ra != rb ? ra < rb : a < b;
    };
    int winner = best;
    for (int c : field) {
        Ratio r = ratio(c, best);
        if (r.excess <= std::clamp(3 * r.error, tie(c), options_.tie_most) && precedes(c, winner)) winner = c;
    }
    return winner;
}

SearchResult Search::run() {
    std::vector<int> field = hopeful();
    bool more = true;
    // Nothing is known of how long they take: a few turns tell what the budget buys.
    bool unknown =
        std::any_of(field.begin(), field.end(), [&](int c) { return candidates_[std::size_t(c)].estimate_ms <= 0; });
    if (unknown && !field.empty()) more = round(field, 3);
    int samples = options_.first_samples;
    for (int i = 0; i < options_.rounds && more && int(field.size()) > options_.finalists; ++i, samples *= 2) {
        more = round(field, samples) && spent_ms_ < options_.budget_ms / 2;
        if (!field.empty() && !result_.interrupted) drop_slower_half(field);
    }
    if (result_.interrupted) return result_;
    if (field.size() == 1)
        round(field, options_.final_samples);
    else
        final_round(field);
    std::erase_if(field, [&](int c) { return samples_[std::size_t(c)].empty(); });
    if (!field.empty() && !result_.interrupted) result_.winner = pick(field);
    return result_;
}

}  // namespace

SearchResult search_fastest(CandidateTimer& timer, const std::vector<SearchCandidate>& candidates,
                            const SearchOptions& options) {
    return Search(timer, candidates, options).run();
}

}  // namespace turbotune
