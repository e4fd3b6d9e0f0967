#include "kernels/probe.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"
#include "base/time.h"
#include "kernels/cpu/isa.h"

static double rate(double amount, int64_t began)
{
	int64_t ns = time_mono_ns() - began;

	return amount * 1e9 / (double)(ns > 0 ? ns : 1);
}

/* ---- reading ---- */

enum { PIECE = 1 << 20, HUGE = 2 << 20, MOST = 1 << 30 };

struct read_job {
	const uint64_t *p;
	struct { _Alignas(64) uint64_t v; } *sum; /* [threads] a cache line each */
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
	j->sum[worker].v ^= a ^ b ^ c ^ d;
}

double kern_probe_read(struct kern_stream *s, const void *p, size_t bytes)
{
	struct read_job j = { .p = p, .sum = mem_aligned((size_t)kern_threads(s) * sizeof(*j.sum)) };
	int64_t began = time_mono_ns();
	double r;

	if (!j.sum)
		return 0;
	kern_parallel(s, bytes / PIECE, read_piece, &j);
	r = rate((double)(bytes / PIECE * PIECE), began);
	free(j.sum);
	return r;
}

static void fill_piece(void *arg, size_t i, int worker)
{
	(void)worker;
	memset((unsigned char *)arg + i * PIECE, (int)i | 1, PIECE);
}

/* A file of what Linux says of a CPU's cache; false where there is none. */
static bool cache_file(int cpu, int index, const char *name, char *text, size_t size)
{
	char path[128];
	FILE *f;
	bool ok;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, name);
	f = fopen(path, "r");
	if (!f)
		return false;
	ok = fgets(text, (int)size, f) != NULL;
	fclose(f);
	return ok;
}

struct last_cache { size_t bytes; char cpus[64]; }; /* cpus: who shares it, as the system writes them */

static struct last_cache last_cache(int cpu)
{
	struct last_cache c = { 0 };
	char size[32], cpus[sizeof(c.cpus)];

	for (int index = 0; index < 8; index++) {
		if (!cache_file(cpu, index, "size", size, sizeof(size)) ||
		    !cache_file(cpu, index, "shared_cpu_list", cpus, sizeof(cpus)))
			break;
		c.bytes = strtoul(size, NULL, 10) << 10;
		memcpy(c.cpus, cpus, sizeof(cpus));
	}
	return c;
}

size_t kern_probe_cache(void)
{
	struct last_cache seen[64];
	size_t sum = 0, n = 0;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE && n < ARRAY_LEN(seen); cpu++) {
		size_t i = 0;

		if (!CPU_ISSET(cpu, &set))
			continue;
		seen[n] = last_cache(cpu);
		while (strcmp(seen[i].cpus, seen[n].cpus))
			i++;
		if (i == n)
			sum += seen[n++].bytes;
	}
	return sum;
}

void *kern_probe_memory(struct kern_stream *s, bool huge, size_t *bytes)
{
	size_t cache = kern_probe_cache();
	void *p;

	if (*bytes / 4 < cache)
		*bytes = 4 * cache;
	*bytes = round_up(*bytes < MOST ? *bytes : MOST, HUGE);
	p = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, *bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	kern_parallel(s, *bytes / PIECE, fill_piece, p);
	return p;
}

void kern_probe_free(void *p, size_t bytes)
{
	if (p)
		munmap(p, bytes);
}

/* ---- multiply-adds ---- */

/* CHAINS independent sums hide the latency of one. */
enum { SPINS = 20000, CHAINS = 12, ITEMS = 64 };

#if defined(__x86_64__)

#define SPIN(name, isa, vec, zero, setup, step, reg) \
	__attribute__((target(isa))) static void name(void *arg, size_t i, int worker) \
	{ \
		vec a[CHAINS]; \
		setup; \
		(void)arg, (void)worker; \
		for (int c = 0; c < CHAINS; c++) \
			a[c] = zero; \
		for (int k = 0; k < SPINS; k++) \
			_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) \
				a[c] = step; \
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) \
			__asm__ volatile("" : : reg(a[c])); \
	}

SPIN(spin_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), __m512bh x = (__m512bh)_mm512_set1_epi16((short)i),
	_mm512_dpbf16_ps(a[c], x, x), "v")
SPIN(spin_512, "avx512f", __m512, _mm512_setzero_ps(), __m512 x = _mm512_set1_ps((float)i),
	_mm512_fmadd_ps(x, x, a[c]), "v")
SPIN(spin_256, "avx2,fma", __m256, _mm256_setzero_ps(), __m256 x = _mm256_set1_ps((float)i),
	_mm256_fmadd_ps(x, x, a[c]), "x")

/* As the reference goes: one product and one sum at a time, in registers. */
static void spin_scalar(void *arg, size_t i, int worker)
{
	float a[CHAINS] = { 0 }, x = (float)i, y = 1.0f + (float)i;

	(void)arg, (void)worker;
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) {
			a[c] += x * y;
			__asm__ volatile("" : "+x"(a[c]));
		}
}

#endif

struct spin {
	const char *set;
	enum probe_op op;
	size_t lanes; /* multiply-adds an instruction */
	void (*fn)(void *arg, size_t i, int worker);
};

static const struct spin *find_spin(const struct kern_stream *s, enum probe_op op)
{
	static const struct spin spins[] = {
#if defined(__x86_64__)
		{ "avx512bf16", PROBE_BF16, 32, spin_bf16 },
		{ "avx512bf16", PROBE_F32, 16, spin_512 },
		{ "avx512", PROBE_F32, 16, spin_512 },
		{ "avx2", PROBE_F32, 8, spin_256 },
		{ "scalar", PROBE_F32, 1, spin_scalar },
#endif
	};

	for (size_t i = 0; i < ARRAY_LEN(spins); i++)
		if (spins[i].op == op && strcmp(spins[i].set, kern_set_name(s)) == 0)
			return &spins[i];
	return NULL;
}

double kern_probe_peak(struct kern_stream *s, enum probe_op op)
{
	const struct spin *spin = find_spin(s, op);
	int64_t began;

	if (!spin)
		return 0;
	began = time_mono_ns();
	kern_parallel(s, ITEMS, spin->fn, NULL);
	return rate(2.0 * (double)spin->lanes * SPINS * CHAINS * ITEMS, began);
}

double kern_probe_best(struct kern_stream *s)
{
	double f32 = kern_probe_peak(s, PROBE_F32), bf16 = kern_probe_peak(s, PROBE_BF16);

	return bf16 > f32 ? bf16 : f32;
}
