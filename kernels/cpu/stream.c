#include "kernels/cpu/stream.h"

#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

float isa_e4m3[256];
uint8_t isa_e4m3_bf16[2][128] __attribute__((aligned(64)));
_Thread_local void *isa_desk;

/* Not all compilers' __builtin_cpu_supports know of it. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512bf16(void)
{
	return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

static bool has_scalar(void)
{
	return true;
}

/* Best first. */
static const struct set {
	const char *name;
	const struct isa *isa;
	bool (*runs)(void);
} sets[] = {
	{ "avx512bf16", &isa_avx512bf16, has_avx512bf16 },
	{ "avx512f", &isa_avx512, has_avx512 },
	{ "avx2", &isa_avx2, has_avx2 },
	{ "scalar", &isa_scalar, has_scalar },
};

static int choose(const struct isa **isa, const char *name, struct ds_err *err)
{
	const char *from = "";
	bool known = false;

	if (!name) {
		name = getenv("DS_KERNELS");
		from = "DS_KERNELS: ";
	}
	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		const struct set *s = &sets[i];
		bool match = !name || !*name || strcmp(name, s->name) == 0 ||
		             (strcmp(name, "avx512") == 0 && (s->isa == &isa_avx512bf16 || s->isa == &isa_avx512));

		known |= match;
		if (match && s->runs()) {
			*isa = s->isa;
			return 0;
		}
	}
	if (known)
		return err_set(err, DS_CONFIG, "%sthis CPU does not run the kernels '%s'", from, name);
	return err_set(err, DS_CONFIG, "%sno kernels '%s': scalar, avx2, avx512, avx512bf16 exist", from, name);
}

static void fill_table(void)
{
	for (int i = 0; i < 256; i++)
		isa_e4m3[i] = e4m3_to_f32((uint8_t)i);
	for (int i = 0; i < 128; i++) {
		uint16_t h = f32_to_bf16(isa_e4m3[i]);

		isa_e4m3_bf16[0][i] = (uint8_t)h;
		isa_e4m3_bf16[1][i] = (uint8_t)(h >> 8);
	}
}

int kern_stream_new(struct kern_stream **out, int threads, const char *set, struct ds_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct isa *isa = NULL;
	struct kern_stream *s;
	int rc;

	if (threads < 1)
		return err_set(err, DS_USAGE, "%d threads: at least 1 is needed", threads);
	rc = choose(&isa, set, err);
	if (rc)
		return rc;
	pthread_once(&once, fill_table);
	s = mem_calloc(1, sizeof(*s));
	if (!s)
		return err_nomem(err, sizeof(*s), "a kernel stream");
	s->isa = isa;
	s->scratch = mem_calloc((size_t)threads + 1, sizeof(*s->scratch));
	if (!s->scratch) {
		free(s);
		return err_nomem(err, (size_t)threads * sizeof(*s->scratch), "a kernel stream");
	}
	rc = pool_init(&s->pool, threads, err);
	if (rc) {
		free(s->scratch);
		free(s);
		return rc;
	}
	*out = s;
	return 0;
}

void kern_stream_free(struct kern_stream *s)
{
	int threads;

	if (!s)
		return;
	threads = s->pool.threads;
	kern_watch(s, NULL, NULL, &(struct ds_err){ 0 });
	pool_free(&s->pool);
	for (int i = 0; i <= threads; i++)
		free(s->scratch[i].p);
	free(s->scratch);
	free(s);
}

const char *kern_set_name(const struct kern_stream *s)
{
	return s->isa->name;
}

int kern_threads(const struct kern_stream *s)
{
	return s->pool.threads;
}

const struct isa *kern_isa(const struct kern_stream *s)
{
	return s->isa;
}

void kern_parallel(struct kern_stream *s, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg)
{
	pool_run(&s->pool, n, fn, arg);
}

static bool grow(struct scratch *c, size_t bytes)
{
	void *p;

	if (c->bytes >= bytes)
		return true;
	p = aligned_alloc(64, round_up(bytes, 4096)); /* not cleared: pages are taken as they are used */
	if (!p)
		return false;
	free(c->p);
	c->p = p;
	c->bytes = round_up(bytes, 4096);
	return true;
}

int kern_reserve(struct kern_stream *s, size_t bytes, size_t shared, struct ds_err *err)
{
	for (int i = 0; i < s->pool.threads; i++)
		if (!grow(&s->scratch[i], bytes))
			return err_nomem(err, bytes, "a thread's working memory");
	return grow(&s->scratch[s->pool.threads], shared) ? 0 : err_nomem(err, shared,
		"the threads' shared working memory");
}

void *kern_scratch(struct kern_stream *s, int worker, size_t bytes)
{
	struct scratch *c = &s->scratch[worker];

	if (!grow(c, bytes)) {
		fprintf(stderr, "dsutils: out of memory: %zu bytes for a thread's working memory\n", bytes);
		_exit(DS_OS);
	}
	return c->p;
}

size_t kern_rows_per_item(const struct kern_stream *s, size_t rows, size_t cols)
{
	size_t worth = 16384 / (cols ? cols : 1) + 1; /* some microseconds */
	size_t fair = (rows + 4 * (size_t)s->pool.threads - 1) / (4 * (size_t)s->pool.threads);

	return worth > fair ? worth : fair;
}
