/*
 * What the machine can do at most, measured in the same run: reading memory, and the multiply-adds of a kernel set.
 */
#ifndef DS_TESTS_BENCH_LIMITS_H
#define DS_TESTS_BENCH_LIMITS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"
#include "base/time.h"
#include "kernels/kernels.h"

enum { PIECE = 1 << 20 };

static inline double bench_seconds(void)
{
	return (double)time_mono_ns() * 1e-9;
}

struct read_job {
	const uint64_t *p;
	uint64_t sum[64];
};

static void read_piece(void *arg, size_t i, int worker)
{
	struct read_job *j = arg;
	const uint64_t *p = j->p + i * (PIECE / 8);
	uint64_t a = 0, b = 0, c = 0, d = 0;

	for (size_t k = 0; k < PIECE / 8; k += 8) {
		a ^= p[k] ^ p[k + 4];
		b ^= p[k + 1] ^ p[k + 5];
		c ^= p[k + 2] ^ p[k + 6];
		d ^= p[k + 3] ^ p[k + 7];
	}
	j->sum[worker & 63] ^= a ^ b ^ c ^ d;
}

/* bytes a second, the best of some passes */
__attribute__((unused)) static double limit_read(struct kern_stream *s, const void *p, size_t bytes)
{
	struct read_job j = { .p = p };
	double best = 0;

	for (int pass = 0; pass < 5; pass++) {
		double t = bench_seconds();

		kern_parallel(s, bytes / PIECE, read_piece, &j);
		t = bench_seconds() - t;
		if ((double)bytes / t > best)
			best = (double)bytes / t;
	}
	return best;
}

enum { SPINS = 20000, CHAINS = 12 };

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) static void spin_bf16(void *arg, size_t i, int worker)
{
	__m512 a[CHAINS];
	__m512bh x = (__m512bh)_mm512_set1_epi16((short)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm512_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm512_dpbf16_ps(a[c], x, x);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "v"(a[c]));
}

__attribute__((target("avx512f"))) static void spin_512(void *arg, size_t i, int worker)
{
	__m512 a[CHAINS], x = _mm512_set1_ps((float)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm512_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm512_fmadd_ps(x, x, a[c]);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "v"(a[c]));
}

__attribute__((target("avx2,fma"))) static void spin_256(void *arg, size_t i, int worker)
{
	__m256 a[CHAINS], x = _mm256_set1_ps((float)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm256_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm256_fmadd_ps(x, x, a[c]);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "x"(a[c]));
}
#endif

/* The set's fastest multiply-add in operations a second (2 for a product and its sum); 0 where there is no loop for
 * it. */
__attribute__((unused)) static double limit_multiply(struct kern_stream *s)
{
	double best = 0;
#if defined(__x86_64__)
	const char *set = kern_set_name(s);
	bool bf16 = strcmp(set, "avx512bf16") == 0, wide = strcmp(set, "avx512") == 0;
	void (*spin)(void *, size_t, int) = bf16 ? spin_bf16 : wide ? spin_512 : spin_256;
	double ops = 64.0 * SPINS * CHAINS * (bf16 ? 64 : wide ? 32 : 16);

	if (strcmp(set, "scalar") == 0)
		return 0;
	for (int pass = 0; pass < 3; pass++) {
		double t = bench_seconds();

		kern_parallel(s, 64, spin, NULL);
		t = bench_seconds() - t;
		if (ops / t > best)
			best = ops / t;
	}
#else
	(void)s;
#endif
	return best;
}

#endif
