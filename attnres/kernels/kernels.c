/* Row kernels of depth mixing, RMSNorm, SwiGLU and rotary embedding for CPUs; see attnres/kernels/__init__.py.

   Compiled once for REAL = float and once for REAL = double. A row is the `width` channels of one token.
   Tensors are contiguous unless strides are passed; "code" says how a tensor's elements are stored
   (NATIVE = REAL, BF16). Every function works on the tokens begin <= x < end, so that threads can share it.

   One pass over memory is the aim: a source row is read once into L1 and used for everything there. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define NATIVE 0
#define BF16 1
#define MAX_WIDTH 16384 /* scratch rows live on the stack */
#define MAX_SOURCES 1024
#define FLUSH 64 /* tokens summed before a column sum is flushed: keeps fp32 rounding small */

typedef const void *const *rows_t;

static inline void widen(const uint16_t *from, REAL *to, long width) {
  for (long d = 0; d < width; d++) {
    uint32_t bits = (uint32_t)from[d] << 16;
    float value;
    memcpy(&value, &bits, 4);
    to[d] = value;
  }
}

static inline void narrow(const REAL *from, uint16_t *to, long width) {
  for (long d = 0; d < width; d++) {
    float value = (float)from[d];
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[d] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
  }
}

/* Row x of a tensor: where it lies, or widened into scratch. */
static inline const REAL *row(const void *tensor, int code, long x, long width, REAL *scratch) {
  if (code == NATIVE) return (const REAL *)tensor + x * width;
  widen((const uint16_t *)tensor + x * width, scratch, width);
  return scratch;
}

/* Where to compute row x of an output; store() narrows it if needed. */
static inline REAL *slot(void *tensor, int code, long x, long width, REAL *scratch) {
  return code == NATIVE ? (REAL *)tensor + x * width : scratch;
}

static inline void store(void *tensor, int code, long x, long width, const REAL *scratch) {
  if (code == BF16) narrow(scratch, (uint16_t *)tensor + x * width, width);
}

static inline REAL dot(const REAL *restrict a, const REAL *restrict b, long width) {
  REAL sum = 0;
  for (long d = 0; d < width; d++) sum += a[d] * b[d];
  return sum;
}

/* exp for vectors: 2^n times a polynomial on [-1/2, 1/2] (Taylor to degree 7: 2 ulp in fp32). */
static inline REAL exponential(REAL x) {
  if (sizeof(REAL) == 8) return exp(x);
  float t = (float)x * 1.44269504f;
  t = t < -126.0f ? -126.0f : t;
  t = t > 126.0f ? 126.0f : t;
  float whole = rintf(t), f = (t - whole) * 0.693147181f;
  float p = 1.0f + f * (1.0f + f * (0.5f + f * (1.6666667e-1f + f * (4.1666668e-2f
          + f * (8.3333333e-3f + f * (1.3888889e-3f + f * 1.9841270e-4f))))));
  int32_t bits = ((int32_t)whole + 127) << 23;
  float scale;
  memcpy(&scale, &bits, 4);
  return p * scale;
}

/* v = running + y (or y alone, which v_out may be), r = (mean(v^2) + eps)^(-1/2), logits[l] = r (q_l . v). */
void absorb(long begin, long end, long tokens, long width, long reads, double eps, const void *running,
            int running_code, const void *y, int y_code, const REAL *queries, REAL *v_out, REAL *r_out, REAL *logits) {
  REAL scratch[MAX_WIDTH], past_scratch[MAX_WIDTH];
  for (long x = begin; x < end; x++) {
    const REAL *v = row(y, y_code, x, width, scratch);
    if (running) { /* v_out may be running itself */
      REAL *sum = v_out + x * width;
      const REAL *past = row(running, running_code, x, width, past_scratch);
      for (long d = 0; d < width; d++) sum[d] = past[d] + v[d];
      v = sum;
    } else if ((const void *)v_out != y) {
      memcpy(v_out + x * width, v, width * sizeof(REAL));
    }
    REAL r = 1 / sqrt(dot(v, v, width) / width + (REAL)eps);
    r_out[x] = r;
    long l = 0;
    for (; l + 4 <= reads; l += 4) {
      const REAL *restrict q = queries + l * width;
      REAL s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (long d = 0; d < width; d++) {
        s0 += q[d] * v[d];
        s1 += q[width + d] * v[d];
        s2 += q[2 * width + d] * v[d];
        s3 += q[3 * width + d] * v[d];
      }
      logits[l * tokens + x] = r * s0;
      logits[(l + 1) * tokens + x] = r * s1;
      logits[(l + 2) * tokens + x] = r * s2;
      logits[(l + 3) * tokens + x] = r * s3;
    }
    for (; l < reads; l++) logits[l * tokens + x] = r * dot(queries + l * width, v, width);
  }
}

/* Logits in ``weights`` -> their softmax over sources; returns log sum exp. */
static inline REAL softmax(long n, REAL *weights) {
  REAL top = weights[0], sum = 0;
  for (long i = 1; i < n; i++) top = weights[i] > top ? weights[i] : top;
  for (long i = 0; i < n; i++) sum += weights[i] = exponential(weights[i] - top);
  for (long i = 0; i < n; i++) weights[i] /= sum;
  return top + log(sum);
}

static inline void combine(long n, rows_t sources, const int *codes, const REAL *weights, long x, long width,
                           REAL *restrict h) {
  REAL scratch[4][MAX_WIDTH];
  long i = 0;
  memset(h, 0, width * sizeof(REAL));
  for (; i + 4 <= n; i += 4) {
    const REAL *v[4];
    for (long k = 0; k < 4; k++) v[k] = row(sources[i + k], codes[i + k], x, width, scratch[k]);
    const REAL *restrict v0 = v[0], *restrict v1 = v[1], *restrict v2 = v[2], *restrict v3 = v[3];
    REAL a0 = weights[i], a1 = weights[i + 1], a2 = weights[i + 2], a3 = weights[i + 3];
    for (long d = 0; d < width; d++) h[d] += a0 * v0[d] + a1 * v1[d] + a2 * v2[d] + a3 * v3[d];
  }
  for (; i < n; i++) {
    const REAL *restrict v = row(sources[i], codes[i], x, width, scratch[0]);
    REAL a = weights[i];
    for (long d = 0; d < width; d++) h[d] += a * v[d];
  }
}

/* h = sum_i softmax(logits)_i v_i. With gain: y = h r gain as well. h_out may be null then. */
void mix(long begin, long end, long width, long n, double eps, rows_t sources, const int *codes,
         const REAL *const *logits, const REAL *gain, REAL *h_out, REAL *lse_out, void *y_out, int y_code,
         REAL *r_out) {
  REAL weights[MAX_SOURCES], h_scratch[MAX_WIDTH], y_scratch[MAX_WIDTH];
  for (long x = begin; x < end; x++) {
    REAL *restrict h = h_out ? h_out + x * width : h_scratch;
    for (long i = 0; i < n; i++) weights[i] = logits[i][x];
    lse_out[x] = softmax(n, weights);
    combine(n, sources, codes, weights, x, width, h);
    if (!y_out) continue;
    REAL r = 1 / sqrt(dot(h, h, width) / width + (REAL)eps);
    REAL *restrict y = slot(y_out, y_code, x, width, y_scratch);
    r_out[x] = r;
    for (long d = 0; d < width; d++) y[d] = h[d] * r * gain[d];
    store(y_out, y_code, x, width, y_scratch);
  }
}

/* h of `mix` from the sources and the read's query alone: logits are computed again, nothing of them is kept. */
void remix(long begin, long end, long width, long n, double eps, rows_t sources, const int *codes,
           const REAL *restrict query, REAL *h_out) {
  REAL weights[MAX_SOURCES], scratch[4][MAX_WIDTH];
  for (long x = begin; x < end; x++) {
    for (long i = 0; i < n; i += 4) { /* four at a time: sums that do not wait for each other */
      const REAL *v[4];
      for (long k = 0; k < 4; k++) { /* past the end the last source again, unused */
        long j = i + k < n ? i + k : n - 1;
        v[k] = row(sources[j], codes[j], x, width, scratch[k]);
      }
      const REAL *restrict v0 = v[0], *restrict v1 = v[1], *restrict v2 = v[2], *restrict v3 = v[3];
      REAL a0 = 0, a1 = 0, a2 = 0, a3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (long d = 0; d < width; d++) {
        REAL q = query[d];
        a0 += q * v0[d], a1 += q * v1[d], a2 += q * v2[d], a3 += q * v3[d];
        s0 += v0[d] * v0[d], s1 += v1[d] * v1[d], s2 += v2[d] * v2[d], s3 += v3[d] * v3[d];
      }
      REAL along[4] = {a0, a1, a2, a3}, square[4] = {s0, s1, s2, s3};
      for (long k = 0; k < 4 && i + k < n; k++) weights[i + k] = along[k] / sqrt(square[k] / width + (REAL)eps);
    }
    softmax(n, weights);
    combine(n, sources, codes, weights, x, width, h_out + x * width);
  }
}

/* The gradient of a source from the reads that attended over it:
   c_l = g_l . v, a_l = exp(s_l - lse_l), ds_l = a_l (c_l - g_l . h_l),
   dv = upstream + sum_l a_l g_l + ds_l r (q_l - s_l r v / width);  dsr[l] = ds_l r.
   stats[l] = {lse_l[tokens], (g_l . h_l)[tokens]}. */
void gather(long begin, long end, long tokens, long width, long reads, const void *v_in, int v_code,
            const REAL *r_in, const REAL *logits, const REAL *queries, const REAL *const *grads,
            const REAL *const *stats, const REAL *upstream, void *dv_out, REAL *dsr) {
  REAL v_scratch[MAX_WIDTH], acc[MAX_WIDTH], a[MAX_SOURCES];
  for (long x = begin; x < end; x++) {
    const REAL *restrict v = row(v_in, v_code, x, width, v_scratch);
    REAL r = r_in[x], shrink = 0;
    for (long l = 0; l < reads; l++) a[l] = exponential(logits[l * tokens + x] - stats[l][x]);
    if (upstream) memcpy(acc, upstream + x * width, width * sizeof(REAL));
    else memset(acc, 0, width * sizeof(REAL));
    long l = 0;
    for (; l + 2 <= reads; l += 2) {
      const REAL *restrict g = grads[l] + x * width, *restrict g1 = grads[l + 1] + x * width;
      const REAL *restrict q = queries + l * width, *restrict q1 = q + width;
      REAL c = 0, c1 = 0;
      for (long d = 0; d < width; d++) {
        c += g[d] * v[d];
        c1 += g1[d] * v[d];
      }
      REAL ds = a[l] * (c - stats[l][tokens + x]), ds1 = a[l + 1] * (c1 - stats[l + 1][tokens + x]);
      shrink += ds * logits[l * tokens + x] + ds1 * logits[(l + 1) * tokens + x];
      dsr[l * tokens + x] = ds *= r;
      dsr[(l + 1) * tokens + x] = ds1 *= r;
      for (long d = 0; d < width; d++) acc[d] += a[l] * g[d] + ds * q[d] + a[l + 1] * g1[d] + ds1 * q1[d];
    }
    for (; l < reads; l++) {
      const REAL *restrict g = grads[l] + x * width, *restrict q = queries + l * width;
      REAL ds = a[l] * (dot(g, v, width) - stats[l][tokens + x]);
      shrink += ds * logits[l * tokens + x];
      dsr[l * tokens + x] = ds *= r;
      for (long d = 0; d < width; d++) acc[d] += a[l] * g[d] + ds * q[d];
    }
    REAL pull = shrink * r * r / width;
    REAL *restrict dv = slot(dv_out, v_code, x, width, acc);
    for (long d = 0; d < width; d++) dv[d] = acc[d] - pull * v[d];
    store(dv_out, v_code, x, width, acc);
  }
}

/* y = x r gain, r = (mean(x^2) + eps)^(-1/2). */
void norm_forward(long begin, long end, long width, double eps, const void *x_in, int x_code, const REAL *gain,
                  void *y_out, int y_code, REAL *r_out) {
  REAL x_scratch[MAX_WIDTH], y_scratch[MAX_WIDTH];
  for (long t = begin; t < end; t++) {
    const REAL *restrict x = row(x_in, x_code, t, width, x_scratch);
    REAL *restrict y = slot(y_out, y_code, t, width, y_scratch);
    REAL r = 1 / sqrt(dot(x, x, width) / width + (REAL)eps);
    r_out[t] = r;
    for (long d = 0; d < width; d++) y[d] = x[d] * r * gain[d];
    store(y_out, y_code, t, width, y_scratch);
  }
}

/* dx = r (gy gain - x r^2 mean(gy gain x)), dgain += sum gy x r, along[t] = dx . x (if wanted). */
void norm_backward(long begin, long end, long width, const void *x_in, int x_code, const REAL *gain,
                   const REAL *r_in, const void *gy_in, int gy_code, void *dx_out, REAL *dgain, REAL *along) {
  REAL x_scratch[MAX_WIDTH], gy_scratch[MAX_WIDTH], dx_scratch[MAX_WIDTH], part[MAX_WIDTH];
  memset(part, 0, width * sizeof(REAL));
  for (long t = begin; t < end; t++) {
    const REAL *restrict x = row(x_in, x_code, t, width, x_scratch);
    const REAL *restrict gy = row(gy_in, gy_code, t, width, gy_scratch);
    REAL *restrict dx = slot(dx_out, x_code, t, width, dx_scratch);
    REAL r = r_in[t], sum = 0, inner = 0;
    for (long d = 0; d < width; d++) {
      REAL scaled = gy[d] * x[d];
      part[d] += scaled * r;
      sum += scaled * gain[d];
    }
    REAL pull = sum * r * r / width;
    for (long d = 0; d < width; d++) {
      REAL value = r * (gy[d] * gain[d] - pull * x[d]);
      inner += value * x[d];
      dx[d] = value;
    }
    if (along) along[t] = inner;
    store(dx_out, x_code, t, width, dx_scratch);
    if ((t - begin) % FLUSH == FLUSH - 1 || t == end - 1) {
      for (long d = 0; d < width; d++) dgain[d] += part[d];
      memset(part, 0, width * sizeof(REAL));
    }
  }
}

/* y = silu(gate) up, a row of gate_up being [gate, up]. */
void swiglu_forward(long begin, long end, long width, const void *gate_up, int code, void *y_out) {
  REAL in_scratch[2 * MAX_WIDTH], y_scratch[MAX_WIDTH];
  for (long t = begin; t < end; t++) {
    const REAL *restrict gate = row(gate_up, code, t, 2 * width, in_scratch), *restrict up = gate + width;
    REAL *restrict y = slot(y_out, code, t, width, y_scratch);
    for (long d = 0; d < width; d++) y[d] = gate[d] * up[d] / (1 + exponential(-gate[d]));
    store(y_out, code, t, width, y_scratch);
  }
}

/* dup = gy silu(gate), dgate = gy up sigma (1 + gate (1 - sigma)). */
void swiglu_backward(long begin, long end, long width, const void *gate_up, const void *gy_in, int code,
                     void *grad_out) {
  REAL in_scratch[2 * MAX_WIDTH], gy_scratch[MAX_WIDTH], grad_scratch[2 * MAX_WIDTH];
  for (long t = begin; t < end; t++) {
    const REAL *restrict gate = row(gate_up, code, t, 2 * width, in_scratch), *restrict up = gate + width;
    const REAL *restrict gy = row(gy_in, code, t, width, gy_scratch);
    REAL *restrict grad = slot(grad_out, code, t, 2 * width, grad_scratch);
    for (long d = 0; d < width; d++) {
      REAL sigma = 1 / (1 + exponential(-gate[d]));
      grad[d] = gy[d] * up[d] * sigma * (1 + gate[d] * (1 - sigma));
      grad[width + d] = gy[d] * gate[d] * sigma;
    }
    store(grad_out, code, t, 2 * width, grad_scratch);
  }
}

/* Queries and keys of qkv (token, 3, head, channel) turned in place by the angles of the token's position. */
void rotate(long begin, long end, long seq_len, long heads, long channels, void *qkv, int code,
            const REAL *cosine, const REAL *sine) {
  REAL scratch[MAX_WIDTH];
  long half = channels / 2;
  for (long x = begin; x < end; x++)
    for (long part = 0; part < 2 * heads; part++) {
      const REAL *restrict c = cosine + (x % seq_len) * channels, *restrict s = sine + (x % seq_len) * channels;
      long index = x * 3 * heads + part;
      REAL *restrict lo = (REAL *)row(qkv, code, index, channels, scratch), *restrict hi = lo + half;
      for (long d = 0; d < half; d++) {
        REAL a = lo[d], b = hi[d];
        lo[d] = a * c[d] + b * s[d];
        hi[d] = b * c[half + d] + a * s[half + d];
      }
      store(qkv, code, index, channels, scratch);
    }
}

/* Gradient of qkv from those of q, k, v, each (batch, head, position, channel) with strides {b, h, t}. */
void rotate_backward(long begin, long end, long seq_len, long heads, long channels, rows_t grads,
                     const long *strides, int code, const REAL *cosine, const REAL *sine, void *dqkv) {
  REAL in_scratch[MAX_WIDTH], out_scratch[MAX_WIDTH];
  long half = channels / 2, size = code == NATIVE ? sizeof(REAL) : 2;
  for (long x = begin; x < end; x++) {
    long b = x / seq_len, t = x % seq_len;
    const REAL *restrict c = cosine + t * channels, *restrict s = sine + t * channels;
    for (long part = 0; part < 3; part++)
      for (long head = 0; head < heads; head++) {
        const long *stride = strides + 3 * part;
        const char *from = (const char *)grads[part] + (b * stride[0] + head * stride[1] + t * stride[2]) * size;
        long index = (x * 3 + part) * heads + head;
        if (part == 2) {
          memcpy((char *)dqkv + index * channels * size, from, channels * size);
          continue;
        }
        const REAL *restrict lo = row(from, code, 0, channels, in_scratch), *restrict hi = lo + half;
        REAL *restrict out = slot(dqkv, code, index, channels, out_scratch);
        for (long d = 0; d < half; d++) {
          out[d] = lo[d] * c[d] + hi[d] * s[half + d];
          out[half + d] = hi[d] * c[half + d] + lo[d] * s[d];
        }
        store(dqkv, code, index, channels, out_scratch);
      }
  }
}
