// One training step of the transformer in sweeps/model.py on one core: loss, and gradients of the summed loss.
//
// The sequences of a batch pass through the whole model one after the other, forward and backward, so that what a
// layer keeps for its backward pass stays in the cache. Every matrix product is made of register tiles; what follows it
// (a residual, ReLU, its derivative) is done while the tile is in registers. Attention is computed for blocks of
// queries, each with the keys up to its end, which leaves out half of the score matrix.
//
// T tokens of a sequence, d width, h heads, d_h = d / h, ff width of the MLP, V vocabulary. Matrices are row-major;
// weights are stored (out, in) as in PyTorch. Vectors are GCC's and Clang's portable ones, as wide as the processor's.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

using std::int64_t;

// What sweeps/native_step.py fills in, field by field

struct Norm {
    const float *scale, *shift;
    float *d_scale, *d_shift;
};

struct Layer {
    const float *qkv, *out, *up, *down;
    float *d_qkv, *d_out, *d_up, *d_down;
    Norm norm1, norm2;
};

struct Model {
    int64_t T, d, heads, ff, vocab, layers;
    int64_t together;                      // sequences that pass through the model side by side
    const float *token, *position, *head;  // position: (T, d) or null
    float *d_token, *d_position, *d_head;  // d_position: null where positions are not trained
    Norm norm;
    const Layer* layer;
    float* workspace;
};

struct AdamW {  // of one group of parameters at one step (Loshchilov & Hutter 2019, algorithm 2)
    float rate, decay, beta1, beta2, eps;
    float correction1, correction2;  // 1 - beta^t
    float divisor;                   // of every gradient: tokens, or more where the norm is clipped
};

namespace {

// While one lives, results below 1e-38 become zero. AdamW's moments of embeddings that no text uses decay to such numbers,
// and arithmetic with them takes a hundred times as long.
class NoDenormals {
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr();

public:
    NoDenormals() { _mm_setcsr(before | 0x8040); }  // flush to zero, denormals are zero
    ~NoDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

public:
    NoDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before)::"memory");
        asm volatile("msr fpcr, %0" ::"r"(before | (1ull << 24)) : "memory");
    }
    ~NoDenormals() { asm volatile("msr fpcr, %0" ::"r"(before) : "memory"); }
#endif
};

#if defined(__AVX512F__)
constexpr int W = 16, TILE_VECTORS = 4;  // floats in a vector; vectors across a tile: 32 registers hold 6 x 4 sums
#elif defined(__AVX__)
constexpr int W = 8, TILE_VECTORS = 2;  // 16 registers hold 6 x 2
#elif defined(__aarch64__)
constexpr int W = 4, TILE_VECTORS = 4;
#else
constexpr int W = 4, TILE_VECTORS = 2;
#endif
constexpr int TILE_ROWS = 6, NARROW_TILE_ROWS = 8;  // of a tile as wide as can be, and of others
constexpr int DEPTH = 256;                          // of a product at a time
constexpr int BLOCK = 32;                           // queries that attend together
constexpr float EPS = 1e-5f;                        // of nn.LayerNorm

typedef float Vec __attribute__((vector_size(4 * W)));
typedef int32_t IntVec __attribute__((vector_size(4 * W)));
typedef float Loose __attribute__((vector_size(4 * W), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Loose*>(p) = v; }
inline Vec all(float x) { return x - Vec{}; }

// The first n lanes; the others are zero.
inline Vec load_some(const float* p, int n) {
#if defined(__AVX512F__)
    return (Vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    Vec v{};
    std::memcpy(&v, p, 4 * n);
    return v;
#endif
}
inline void store_some(float* p, Vec v, int n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    std::memcpy(p, &v, 4 * n);
#endif
}

using Lanes = std::make_integer_sequence<int, W>;

// The vector turned by n lanes.
template <int n, int... i>
inline Vec turn(Vec v, std::integer_sequence<int, i...>) { return __builtin_shufflevector(v, v, ((i + n) % W)...); }

template <int n = W / 2>
inline float sum(Vec v) {
    v += turn<n>(v, Lanes{});
    if constexpr (n > 1) return sum<n / 2>(v);
    return v[0];
}
inline Vec greater(Vec a, Vec b) { return a > b ? a : b; }
template <int n = W / 2>
inline float greatest(Vec v) {
    v = greater(v, turn<n>(v, Lanes{}));
    if constexpr (n > 1) return greatest<n / 2>(v);
    return v[0];
}

// a0 b0 a1 b1 ... of the lower or the upper halves.
template <int half, int... i>
inline Vec mix(Vec a, Vec b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i / 2 + half * W / 2 + i % 2 * W)...);
}

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns.
inline void transpose(int rows, int columns, const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    for (int i = 0; i < rows; i += W)
        for (int j = 0; j < columns; j += W) {
            const int n = rows - i < W ? rows - i : W, m = columns - j < W ? columns - j : W;
            Vec v[2][W];
#pragma GCC unroll 16
            for (int r = 0; r < W; r++) {
                const float* row = from + (i + r) * from_stride + j;
                v[0][r] = r >= n ? Vec{} : m == W ? load(row) : load_some(row, m);
            }
            int which = 0;
#pragma GCC unroll 4
            for (int stage = 1; stage < W; stage *= 2, which = 1 - which)
#pragma GCC unroll 8
                for (int r = 0; r < W / 2; r++) {
                    v[1 - which][2 * r] = mix<0>(v[which][r], v[which][r + W / 2], Lanes{});
                    v[1 - which][2 * r + 1] = mix<1>(v[which][r], v[which][r + W / 2], Lanes{});
                }
#pragma GCC unroll 16
            for (int r = 0; r < W; r++) {
                float* row = to + (j + r) * to_stride + i;
                if (r < m) n == W ? store(row, v[which][r]) : store_some(row, v[which][r], n);
            }
        }
}

inline float dot(int n, const float* a, const float* b) {
    Vec total{};
    int j = 0;
    for (; j + W <= n; j += W) total += load(a + j) * load(b + j);
    if (j < n) total += load_some(a + j, n - j) * load_some(b + j, n - j);
    return sum(total);
}

// exp(x) for x <= 88 to about one unit in the last place (Cephes' expf); below -87 it stays at exp(-87). NaN stays NaN.
inline Vec exponential(Vec x) {
    const Vec above = x < -87.0f ? all(-87.0f) : x;
    const Vec shifted = above * 1.44269504f + 12582912.0f;  // 1.5 2^23: the nearest integer is in the low bits
    const Vec n = shifted - 12582912.0f;
    const Vec r = (above - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Vec result = (Vec)((IntVec)p + ((IntVec)shifted << 23));
    return x == x ? result : x;
}

// Matrix products

enum After { STORE, ADD_TO, RELU, WHERE };  // C = AB, C = X + AB, C = max(AB, 0), C = AB where X > 0

struct Product {
    int M, N, K;
    const float* a;
    int64_t lda;
    const float* b;
    int64_t ldb;
    float* c;
    int64_t ldc;
    const float* x = nullptr;  // with the strides of C
    int64_t panel = 0;         // distance of B's panels of columns; 0: B is an ordinary matrix
    bool accumulate = false;   // AB is added to what C holds
};

// A tile of C: R rows, Q vectors; the last has `lanes` lanes where PART. A is (K, M) where TRANSPOSED, else (M, K).
template <int R, int Q, bool TRANSPOSED, bool PART>
inline void tile(const Product& g, After after, int i, int64_t column, const float* b, int lanes) {
    Vec acc[R][Q];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) acc[r][q] = Vec{};
    const float* a = TRANSPOSED ? g.a + i : g.a + i * g.lda;
    const int64_t lda = g.lda, ldb = g.ldb;
    for (int k = 0; k < g.K; k++) {
        Vec row[Q];
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) row[q] = PART && q == Q - 1 ? load_some(b + q * W, lanes) : load(b + q * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const Vec x = all(TRANSPOSED ? a[r] : a[r * lda]);
#pragma GCC unroll 4
            for (int q = 0; q < Q; q++) acc[r][q] += x * row[q];
        }
        a += TRANSPOSED ? lda : 1;
        b += ldb;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int q = 0; q < Q; q++) {
            const bool part = PART && q == Q - 1;
            const int64_t place = (i + r) * g.ldc + column + q * W;
            const auto read = [&](const float* p) { return part ? load_some(p + place, lanes) : load(p + place); };
            Vec v = acc[r][q];
            if (g.accumulate) v += read(g.c);
            if (after == ADD_TO) v += read(g.x);
            if (after == RELU) v = v < 0.0f ? Vec{} : v;  // NaN stays NaN
            if (after == WHERE) v = read(g.x) > 0.0f ? v : Vec{};
            part ? store_some(g.c + place, v, lanes) : store(g.c + place, v);
        }
}

template <int Q, bool TRANSPOSED, bool PART>
void rows(const Product& g, After after, int64_t column, const float* b, int lanes) {
    constexpr int R = Q == TILE_VECTORS ? TILE_ROWS : NARROW_TILE_ROWS;
    int i = 0;
    for (; i + R <= g.M; i += R) tile<R, Q, TRANSPOSED, PART>(g, after, i, column, b, lanes);
    if (i + 4 <= g.M) tile<4, Q, TRANSPOSED, PART>(g, after, i, column, b, lanes), i += 4;
    if (i + 2 <= g.M) tile<2, Q, TRANSPOSED, PART>(g, after, i, column, b, lanes), i += 2;
    for (; i < g.M; i++) tile<1, Q, TRANSPOSED, PART>(g, after, i, column, b, lanes);
}

template <int Q, bool TRANSPOSED>
void columns(const Product& g, After after, int64_t column, const float* b, int lanes) {
    lanes == W ? rows<Q, TRANSPOSED, false>(g, after, column, b, lanes)
               : rows<Q, TRANSPOSED, true>(g, after, column, b, lanes);
}

// Vectors across each panel of N columns: as equal as can be, at most TILE_VECTORS.
inline int panels(int N) { return ((N + W - 1) / W + TILE_VECTORS - 1) / TILE_VECTORS; }
inline int panel_vectors(int N, int index) {
    const int vectors = (N + W - 1) / W, count = panels(N);
    return vectors / count + (index < vectors % count);
}

template <bool TRANSPOSED>
void product(const Product& whole, After after = STORE) {
    Product g = whole;
    for (int k = 0; k < whole.K; k += DEPTH) {
        const bool last = k + DEPTH >= whole.K;
        g.K = last ? whole.K - k : DEPTH;
        int64_t column = 0;
        for (int p = 0; p < panels(g.N); p++) {
            const int q = panel_vectors(g.N, p);
            const int lanes = column + q * W <= g.N ? W : g.N - int(column) - (q - 1) * W;
            const float* b = g.panel ? g.b + p * g.panel : g.b + column;
            switch (q) {
                case 1: columns<1, TRANSPOSED>(g, last ? after : STORE, column, b, lanes); break;
                case 2: columns<2, TRANSPOSED>(g, last ? after : STORE, column, b, lanes); break;
                case 3: columns<3, TRANSPOSED>(g, last ? after : STORE, column, b, lanes); break;
                case 4: columns<4, TRANSPOSED>(g, last ? after : STORE, column, b, lanes); break;
            }
            column += q * W;
        }
        g.accumulate = true;
        g.a += TRANSPOSED ? DEPTH * g.lda : DEPTH;
        g.b += DEPTH * g.ldb;
    }
}

// The transpose of a weight (N, K) as the right factor: K rows of N columns, in panels whose rows lie side by side.
struct Packed {
    float* data;
    int K, N;
    static constexpr int ROW = TILE_VECTORS * W;
    static int64_t size(int K, int N) { return int64_t(panels(N)) * K * ROW; }

    Product product(int M, const float* a, int64_t lda, float* c, int64_t ldc, const float* x = nullptr) const {
        return {M, N, K, a, lda, data, ROW, c, ldc, x, int64_t(K) * ROW};
    }

    void fill(const float* w) {
        int column = 0;
        for (int p = 0; p < panels(N); p++) {
            const int wide = panel_vectors(N, p) * W, n = column + wide <= N ? wide : N - column;
            transpose(n, K, w + int64_t(column) * K, K, data + int64_t(p) * K * ROW, ROW);
            column += wide;
        }
    }
};

// Row-wise parts

// h = (x - mean) / deviation * scale + shift for each of T rows; mean and 1 / deviation are kept.
void normalise(int T, int d, const float* x, const Norm& norm, float* h, float* mean, float* inverse) {
    const int full = d / W * W, rest = d - full;
    for (int t = 0; t < T; t++, x += d, h += d) {
        Vec total{};
        for (int j = 0; j < full; j += W) total += load(x + j);
        if (rest) total += load_some(x + full, rest);
        const float m = sum(total) / d;
        Vec squares{};
        for (int j = 0; j < full; j += W) {
            const Vec v = load(x + j) - m;
            squares += v * v;
        }
        float more = 0;
        for (int j = full; j < d; j++) more += (x[j] - m) * (x[j] - m);
        const float r = 1.0f / std::sqrt((sum(squares) + more) / d + EPS);
        for (int j = 0; j < full; j += W)
            store(h + j, (load(x + j) - m) * r * load(norm.scale + j) + load(norm.shift + j));
        for (int j = full; j < d; j++) h[j] = (x[j] - m) * r * norm.scale[j] + norm.shift[j];
        mean[t] = m;
        inverse[t] = r;
    }
}

// Adds the gradient through the norm to d_x; `add` false sets it.
void normalise_backward(int T, int d, const float* d_h, const float* x, const Norm& norm, const float* mean,
                        const float* inverse, float* d_x, bool add) {
    for (int t = 0; t < T; t++, x += d, d_h += d, d_x += d) {
        const float m = mean[t], r = inverse[t];
        Vec total{}, product{};
        for (int j = 0; j < d; j += W) {
            const int n = d - j < W ? d - j : W;
            const auto read = [&](const float* p) { return n == W ? load(p + j) : load_some(p + j, n); };
            const auto write = [&](float* p, Vec v) { n == W ? store(p + j, v) : store_some(p + j, v, n); };
            const Vec g = read(d_h), unit = (read(x) - m) * r, scaled = g * read(norm.scale);
            total += scaled;
            product += scaled * unit;  // beyond d the gradient is zero
            write(norm.d_scale, read(norm.d_scale) + g * unit);
            write(norm.d_shift, read(norm.d_shift) + g);
        }
        const float mean_g = sum(total) / d, mean_gx = sum(product) / d;
        for (int j = 0; j < d; j += W) {
            const int n = d - j < W ? d - j : W;
            const auto read = [&](const float* p) { return n == W ? load(p + j) : load_some(p + j, n); };
            const Vec unit = (read(x) - m) * r;
            Vec v = (read(d_h) * read(norm.scale) - mean_g - unit * mean_gx) * r;
            if (add) v += read(d_x);
            n == W ? store(d_x + j, v) : store_some(d_x + j, v, n);
        }
    }
}

void add_to(int64_t n, const float* from, float* to) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

// Row i of scores, keys 0 .. end, to attention weights: softmax of scores times `scale` over keys 0 .. i, zero beyond.
void soften(float* row, int i, int end, float scale) {
    IntVec lane;
    for (int j = 0; j < W; j++) lane[j] = j;
    const int last = i / W * W;  // the vector that holds key i
    const auto masked = [&](float* p, int j) {
        const int n = end - j < W ? end - j : W;
        const Vec v = n == W ? load(p + j) : load_some(p + j, n);
        return lane + j > i ? all(-INFINITY) : v;
    };
    Vec top = masked(row, last);
    for (int j = 0; j < last; j += W) top = greater(load(row + j), top);
    const float most = greatest(top);
    Vec total{};
    for (int j = 0; j <= last; j += W) {
        Vec v = j < last ? load(row + j) : masked(row, last);
        v = exponential((v - most) * scale);
        if (j == last) v = lane + j > i ? Vec{} : v;
        total += v;
        end - j < W ? store_some(row + j, v, end - j) : store(row + j, v);
    }
    const Vec inverse = all(1.0f / sum(total));
    for (int j = 0; j <= last; j += W)
        end - j < W ? store_some(row + j, load_some(row + j, end - j) * inverse, end - j)
                    : store(row + j, load(row + j) * inverse);
    for (int j = last + W; j < end; j++) row[j] = 0;
}

struct Kept {  // of one layer, for its backward pass
    float *x1, *h1, *qkv, *weights, *y, *x2, *h2, *f, *mean1, *inverse1, *mean2, *inverse2;
    Packed qkv_t, out_t, up_t, down_t;
};

// Everything a step needs beside weights and gradients, laid out in one buffer; without a buffer it only counts.
struct Space {
    float* next;
    int64_t used = 0;
    std::vector<Kept> kept;
    Packed head_t;
    float *x, *h, *mean, *inverse, *logits, *d_x, *d_h, *d_f, *d_qkv, *d_y, *d_scores, *turned;

    float* take(int64_t n) {
        float* here = next ? next + used : nullptr;
        used += (n + 15) / 16 * 16;
        return here;
    }
    Packed pack(int64_t K, int64_t N) { return {take(Packed::size(int(K), int(N))), int(K), int(N)}; }

    Space(const Model& m, float* buffer) : next(buffer), kept(m.layers) {
        const int64_t T = m.T, M = T * m.together, d = m.d, ff = m.ff, V = m.vocab;
        for (int i = 0; i < m.layers; i++) {
            Kept& k = kept[i];
            k.x1 = take(M * d), k.h1 = take(M * d), k.qkv = take(3 * M * d), k.weights = take(m.heads * M * T);
            k.y = take(M * d), k.x2 = take(M * d), k.h2 = take(M * d), k.f = take(M * ff);
            k.mean1 = take(M), k.inverse1 = take(M), k.mean2 = take(M), k.inverse2 = take(M);
            k.qkv_t = pack(d, 3 * d), k.out_t = pack(d, d), k.up_t = pack(d, ff), k.down_t = pack(ff, d);
        }
        head_t = pack(d, V);
        x = take(M * d), h = take(M * d), mean = take(M), inverse = take(M), logits = take(M * V);
        d_x = take(M * d), d_h = take(M * d), d_f = take(M * ff), d_qkv = take(3 * M * d), d_y = take(M * d);
        d_scores = take(T * T), turned = take(T * d / m.heads);
    }

    void pack_weights(const Model& m) {
        for (int i = 0; i < m.layers; i++) {
            const Layer& w = m.layer[i];
            Kept& k = kept[i];
            k.qkv_t.fill(w.qkv), k.out_t.fill(w.out), k.up_t.fill(w.up), k.down_t.fill(w.down);
        }
        head_t.fill(m.head);
    }
};

// The gradients that are sums from the start; those of matrices are set by the first sequences.
void clear(const Model& m) {
    const auto zero = [](float* p, int64_t n) { std::memset(p, 0, 4 * n); };
    const auto zero_norm = [&](const Norm& norm) { zero(norm.d_scale, m.d), zero(norm.d_shift, m.d); };
    zero(m.d_token, m.vocab * m.d);
    if (m.d_position) zero(m.d_position, m.T * m.d);
    for (int i = 0; i < m.layers; i++) zero_norm(m.layer[i].norm1), zero_norm(m.layer[i].norm2);
    zero_norm(m.norm);
}

struct Sequences {
    const Model& m;
    Space& s;
    const int n_sequences;
    const bool add;  // to the gradients of matrices that earlier sequences have left
    const int T = int(m.T), d = int(m.d), ff = int(m.ff), V = int(m.vocab), width = int(m.d / m.heads);
    const int M = n_sequences * T;
    const float scale = 1.0f / std::sqrt(float(width));

    void attend(const Kept& k) const {
        for (int pair = 0; pair < n_sequences * m.heads; pair++) {
            const int64_t head = pair % m.heads, first = pair / m.heads * T;
            const float *q = k.qkv + first * 3 * d + head * width, *key = q + d, *value = key + d;
            float *weights = k.weights + int64_t(pair) * T * T, *y = k.y + first * d + head * width;
            transpose(T, width, key, 3 * d, s.turned, T);
            for (int start = 0; start < T; start += BLOCK) {
                const int n = T - start < BLOCK ? T - start : BLOCK, end = start + n;
                float* block = weights + int64_t(start) * T;
                product<false>({n, end, width, q + int64_t(start) * 3 * d, 3 * d, s.turned, T, block, T});
                for (int i = 0; i < n; i++) soften(block + int64_t(i) * T, start + i, end, scale);
                product<false>({n, width, end, block, T, value, 3 * d, y + int64_t(start) * d, d});
            }
        }
    }

    // From s.d_y to s.d_qkv.
    void attend_backward(const Kept& k) const {
        for (int pair = 0; pair < n_sequences * m.heads; pair++) {
            const int64_t head = pair % m.heads, first = pair / m.heads * T;
            const float *q = k.qkv + first * 3 * d + head * width, *key = q + d, *value = key + d;
            float *d_q = s.d_qkv + first * 3 * d + head * width, *d_key = d_q + d, *d_value = d_key + d;
            const float *weights = k.weights + int64_t(pair) * T * T;
            const float *d_y = s.d_y + first * d + head * width, *y = k.y + first * d + head * width;
            transpose(T, width, value, 3 * d, s.turned, T);
            for (int start = 0; start < T; start += BLOCK) {
                const int n = T - start < BLOCK ? T - start : BLOCK, end = start + n;
                float* block = s.d_scores + int64_t(start) * T;
                product<false>({n, end, width, d_y + int64_t(start) * d, d, s.turned, T, block, T});
                for (int i = 0; i < n; i++) {
                    const int64_t row = start + i;
                    const float inner = dot(width, d_y + row * d, y + row * d);
                    float* d_score = block + int64_t(i) * T;
                    const float* weight = weights + row * T;
                    for (int j = 0; j < end; j++) d_score[j] = (d_score[j] - inner) * weight[j] * scale;
                }
                product<false>({n, width, end, block, T, key, 3 * d, d_q + int64_t(start) * 3 * d, 3 * d});
            }
            for (int start = 0; start < T; start += BLOCK) {
                const int n = T - start < BLOCK ? T - start : BLOCK, left = T - start;
                const int64_t corner = int64_t(start) * T + start, row = int64_t(start) * 3 * d;
                product<true>({n, width, left, s.d_scores + corner, T, q + row, 3 * d, d_key + row, 3 * d});
                product<true>({n, width, left, weights + corner, T, d_y + int64_t(start) * d, d, d_value + row, 3 * d});
            }
        }
    }

    void forward(const int64_t* tokens, int64_t stride) const {
        float* x = m.layers ? s.kept[0].x1 : s.x;
        for (int64_t row = 0; row < M; row++) {
            const int64_t t = row % T;
            std::memcpy(x + row * d, m.token + tokens[row / T * stride + t] * d, 4 * d);
            if (m.position) add_to(d, m.position + t * d, x + row * d);
        }
        for (int i = 0; i < m.layers; i++) {
            const Layer& w = m.layer[i];
            const Kept& k = s.kept[i];
            float* output = i + 1 < m.layers ? s.kept[i + 1].x1 : s.x;
            normalise(M, d, k.x1, w.norm1, k.h1, k.mean1, k.inverse1);
            product<false>(k.qkv_t.product(M, k.h1, d, k.qkv, 3 * d));
            attend(k);
            product<false>(k.out_t.product(M, k.y, d, k.x2, d, k.x1), ADD_TO);
            normalise(M, d, k.x2, w.norm2, k.h2, k.mean2, k.inverse2);
            product<false>(k.up_t.product(M, k.h2, d, k.f, ff), RELU);
            product<false>(k.down_t.product(M, k.f, ff, output, d, k.x2), ADD_TO);
        }
        normalise(M, d, s.x, m.norm, s.h, s.mean, s.inverse);
        product<false>(s.head_t.product(M, s.h, d, s.logits, V));
    }

    // The loss of every token; logits become their gradient, probabilities minus one at the target.
    void cross_entropy(const int64_t* targets, int64_t stride, float* losses) const {
        for (int64_t t = 0; t < M; t++) {
            float* row = s.logits + t * V;
            const int64_t target = targets[t / T * stride + t % T];
            const float wanted = row[target];
            float top = row[0];
            const int full = V / W * W, rest = V - full;
            if (full) {
                Vec most = load(row);
                for (int j = W; j < full; j += W) most = greater(load(row + j), most);
                top = greatest(most);
            }
            for (int j = full; j < V; j++) top = row[j] > top ? row[j] : top;
            Vec total{};
            for (int j = 0; j < full; j += W) {
                const Vec v = exponential(load(row + j) - top);
                total += v;
                store(row + j, v);
            }
            float all_of_it = sum(total);
            if (rest) {
                const Vec v = exponential(load_some(row + full, rest) - top);
                store_some(row + full, v, rest);
                for (int j = 0; j < rest; j++) all_of_it += v[j];
            }
            losses[t] = std::log(all_of_it) + top - wanted;
            const float inverse = 1.0f / all_of_it;
            for (int j = 0; j < V; j++) row[j] *= inverse;
            row[target] -= 1.0f;
        }
    }

    void backward(const int64_t* tokens, int64_t stride) const {
        product<true>({V, d, M, s.logits, V, s.h, d, m.d_head, d, nullptr, 0, add});
        product<false>({M, d, V, s.logits, V, m.head, d, s.d_h, d});
        normalise_backward(M, d, s.d_h, s.x, m.norm, s.mean, s.inverse, s.d_x, false);
        for (int i = int(m.layers) - 1; i >= 0; i--) {
            const Layer& w = m.layer[i];
            const Kept& k = s.kept[i];
            product<true>({d, ff, M, s.d_x, d, k.f, ff, w.d_down, ff, nullptr, 0, add});
            product<false>({M, ff, d, s.d_x, d, w.down, ff, s.d_f, ff, k.f}, WHERE);
            product<true>({ff, d, M, s.d_f, ff, k.h2, d, w.d_up, d, nullptr, 0, add});
            product<false>({M, d, ff, s.d_f, ff, w.up, d, s.d_h, d});
            normalise_backward(M, d, s.d_h, k.x2, w.norm2, k.mean2, k.inverse2, s.d_x, true);
            product<true>({d, d, M, s.d_x, d, k.y, d, w.d_out, d, nullptr, 0, add});
            product<false>({M, d, d, s.d_x, d, w.out, d, s.d_y, d});
            attend_backward(k);
            product<true>({3 * d, d, M, s.d_qkv, 3 * d, k.h1, d, w.d_qkv, d, nullptr, 0, add});
            product<false>({M, d, 3 * d, s.d_qkv, 3 * d, w.qkv, d, s.d_h, d});
            normalise_backward(M, d, s.d_h, k.x1, w.norm1, k.mean1, k.inverse1, s.d_x, true);
        }
        for (int64_t row = 0; row < M; row++) {
            const int64_t t = row % T;
            if (m.d_position) add_to(d, s.d_x + row * d, m.d_position + t * d);
            add_to(d, s.d_x + row * d, m.d_token + tokens[row / T * stride + t] * d);
        }
    }
};

}  // namespace

extern "C" {

// Floats that a step needs beside weights and gradients.
int64_t workspace_size(const Model* model) { return Space(*model, nullptr).used; }

// Losses (windows, T) of windows whose inputs and targets start `stride` apart; with `backward` also the gradients of
// their sum. Returns -1, or the first window that holds a token outside the vocabulary: then nothing was done.
int64_t run(const Model* model, int64_t windows, const int64_t* inputs, int64_t input_stride, const int64_t* targets,
            int64_t target_stride, float* losses, int backward) {
    for (int64_t i = 0; i < windows; i++)
        for (int64_t t = 0; t < model->T; t++) {
            const uint64_t largest = model->vocab - 1;
            if (uint64_t(inputs[i * input_stride + t]) > largest || uint64_t(targets[i * target_stride + t]) > largest)
                return i;
        }
    const NoDenormals guard;
    Space space(*model, model->workspace);
    if (backward) clear(*model);
    space.pack_weights(*model);
    for (int64_t i = 0; i < windows; i += model->together) {
        const int n = int(windows - i < model->together ? windows - i : model->together);
        const Sequences sequences{*model, space, n, i > 0};
        sequences.forward(inputs + i * input_stride, input_stride);
        sequences.cross_entropy(targets + i * target_stride, target_stride, losses + i * model->T);
        if (backward) sequences.backward(inputs + i * input_stride, input_stride);
    }
    return -1;
}

// The sum of squares of n gradients.
double squares(int64_t n, const float* gradient) {
    const NoDenormals guard;
    double total = 0;
    for (int64_t i = 0; i < n; i += 4096) {  // single precision within a stretch
        const int64_t length = n - i < 4096 ? n - i : 4096;
        total += dot(int(length), gradient + i, gradient + i);
    }
    return total;
}

// One step of AdamW on n parameters.
void adamw(int64_t n, float* __restrict value, const float* __restrict gradient, float* __restrict first,
           float* __restrict second, const AdamW* of) {
    const NoDenormals guard;
    const AdamW a = *of;
    const float keep = 1.0f - a.rate * a.decay, size = a.rate / a.correction1, root = 1.0f / std::sqrt(a.correction2);
    const float inverse = 1.0f / a.divisor;
    for (int64_t i = 0; i < n; i++) {
        const float g = gradient[i] * inverse;
        const float m = first[i] + (g - first[i]) * (1.0f - a.beta1);
        const float v = second[i] * a.beta2 + g * g * (1.0f - a.beta2);
        first[i] = m;
        second[i] = v;
        value[i] = value[i] * keep - size * m / (std::sqrt(v) * root + a.eps);
    }
}
}
