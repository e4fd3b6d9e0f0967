#include "engine/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "kernels/probe.h"

enum { MOST_RUNS = 32, READ_BYTES = 64 << 20 };

/* ---- measuring ---- */

struct runs { double v[MOST_RUNS]; };

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct machine_rate rate(struct runs *r, int n)
{
	if (n < 1)
		return (struct machine_rate){ 0 };
	qsort(r->v, (size_t)n, sizeof(*r->v), by_size);
	return (struct machine_rate){ .median = n % 2 ? r->v[n / 2] : (r->v[n / 2 - 1] + r->v[n / 2]) / 2,
		.best = r->v[n - 1] };
}

static int at_most(int runs)
{
	return runs < MOST_RUNS ? runs : MOST_RUNS;
}

/* Reading and multiplying take turns, so that what disturbs the machine for a while disturbs both. */
struct machine_limits machine_limits(struct kern_stream *s, int runs)
{
	struct runs read, f32, bf16;
	size_t bytes = READ_BYTES;
	void *memory = kern_probe_memory(s, true, &bytes);

	runs = at_most(runs);
	for (int i = 0; i < runs; i++) {
		read.v[i] = memory ? kern_probe_read(s, memory, bytes) : 0;
		f32.v[i] = kern_probe_peak(s, PROBE_F32);
		bf16.v[i] = kern_probe_peak(s, PROBE_BF16);
	}
	kern_probe_free(memory, bytes);
	return (struct machine_limits){ .read = rate(&read, runs), .f32 = rate(&f32, runs), .bf16 = rate(&bf16, runs) };
}

static int measure_read(struct machine *m, struct kern_stream *s, size_t count, struct ds_err *err)
{
	struct machine_rate *to[] = { &m->read[count], &m->read_small[count] };

	for (size_t k = 0; k < ARRAY_LEN(to); k++) {
		struct runs r;
		size_t bytes = READ_BYTES;
		void *memory = kern_probe_memory(s, k == 0, &bytes);

		if (!memory)
			return err_nomem(err, bytes, "measuring how fast memory is read");
		for (int i = 0; i < m->runs; i++)
			r.v[i] = kern_probe_read(s, memory, bytes);
		kern_probe_free(memory, bytes);
		*to[k] = rate(&r, m->runs);
		m->buffer = bytes;
	}
	return 0;
}

static void measure_peaks(struct machine *m, struct kern_stream *s, size_t count, size_t set)
{
	struct runs f32, bf16;

	for (int i = 0; i < m->runs; i++) {
		f32.v[i] = kern_probe_peak(s, PROBE_F32);
		bf16.v[i] = kern_probe_peak(s, PROBE_BF16);
	}
	m->f32[count][set] = rate(&f32, m->runs);
	m->bf16[count][set] = rate(&bf16, m->runs);
}

/* The kernel sets that this CPU runs, with `threads` threads; reading is the same in all,
 * so it is measured with the first. */
static int measure_count(struct machine *m, int threads, struct ds_err *err)
{
	static const char *const names[MACHINE_SETS] = { "avx512bf16", "avx512f", "avx2", "scalar" };
	size_t set = 0;
	int rc = 0;

	m->threads[m->counts] = threads;
	for (size_t i = 0; i < MACHINE_SETS && !rc; i++) {
		struct kern_stream *s;

		rc = kern_stream_new(&s, threads, names[i], err);
		if (rc == DS_CONFIG) {
			rc = 0;
			continue;
		}
		if (rc)
			break;
		if (!set)
			rc = measure_read(m, s, m->counts, err);
		m->set[set] = names[i];
		measure_peaks(m, s, m->counts, set++);
		kern_stream_free(s);
	}
	m->sets = set;
	m->counts++;
	return rc;
}

/* ---- the machine ---- */

static int cpus_allowed(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return n > 0 ? n : 1;
}

static void find_cpu(char *name, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[256], *at;

	snprintf(name, size, "unknown CPU");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "model name", 10) == 0 && (at = strchr(line, ':')) != NULL) {
			at += strspn(at, ": \t");
			at[strcspn(at, "\n")] = 0;
			snprintf(name, size, "%s", at);
			break;
		}
	if (f)
		fclose(f);
}

int machine_measure(struct machine *m, int threads, int runs, struct ds_err *err)
{
	int rc = 0;

	memset(m, 0, sizeof(*m));
	find_cpu(m->cpu, sizeof(m->cpu));
	m->cpus = cpus_allowed();
	m->cache = kern_probe_cache();
	m->runs = at_most(runs);
	if (!threads)
		threads = m->cpus;
	for (int n = 1; n < threads && !rc && m->counts < MACHINE_COUNTS - 1; n *= 2)
		rc = measure_count(m, n, err);
	return rc ? rc : measure_count(m, threads, err);
}

/* ---- reports ---- */

/* One line: what was measured, with each number of threads; nothing where the machine has no such thing. */
static void line(struct buf *b, const struct machine *m, const char *name, const struct machine_rate *r, size_t step)
{
	if (!(r->best > 0))
		return;
	buf_printf(b, "%-28s", name);
	for (size_t i = 0; i < m->counts; i++)
		buf_printf(b, "  %8.1f %8.1f", r[i * step].median * 1e-9, r[i * step].best * 1e-9);
	buf_str(b, "\n");
}

void machine_text(const struct machine *m, struct buf *b)
{
	char name[64];

	buf_printf(b, "%s, %d CPUs, last cache %zu MiB\n", m->cpu, m->cpus, m->cache >> 20);
	buf_printf(b, "median and best of %d runs; reading %zu MiB\n\n%-28s", m->runs, m->buffer >> 20, "");
	for (size_t i = 0; i < m->counts; i++)
		buf_printf(b, "  %9d thread%c", m->threads[i], m->threads[i] == 1 ? ' ' : 's');
	buf_printf(b, "\n%-28s", "");
	for (size_t i = 0; i < m->counts; i++)
		buf_printf(b, "  %8s %8s", "median", "best");
	buf_str(b, "\n");
	line(b, m, "read, huge pages      GB/s", m->read, 1);
	line(b, m, "read, 4 KiB pages     GB/s", m->read_small, 1);
	for (size_t k = 0; k < m->sets; k++) {
		snprintf(name, sizeof(name), "%-16s BF16 GFLOP/s", m->set[k]);
		line(b, m, name, &m->bf16[0][k], MACHINE_SETS);
		snprintf(name, sizeof(name), "%-16s F32  GFLOP/s", m->set[k]);
		line(b, m, name, &m->f32[0][k], MACHINE_SETS);
	}
}

static void json_rate(struct jw *w, const char *key, const struct machine_rate *r)
{
	if (!(r->best > 0))
		return;
	jw_key(w, key);
	jw_obj(w);
	jw_key(w, "median");
	jw_real(w, r->median);
	jw_key(w, "best");
	jw_real(w, r->best);
	jw_obj_end(w);
}

static void json_count(const struct machine *m, size_t i, struct jw *w)
{
	jw_obj(w);
	jw_key(w, "threads");
	jw_int(w, m->threads[i]);
	json_rate(w, "read", &m->read[i]);
	json_rate(w, "read_4k_pages", &m->read_small[i]);
	jw_key(w, "peaks");
	jw_obj(w);
	for (size_t k = 0; k < m->sets; k++) {
		jw_key(w, m->set[k]);
		jw_obj(w);
		json_rate(w, "f32", &m->f32[i][k]);
		json_rate(w, "bf16", &m->bf16[i][k]);
		jw_obj_end(w);
	}
	jw_obj_end(w);
	jw_obj_end(w);
}

void machine_json(const struct machine *m, struct buf *b)
{
	struct jw w;

	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "cpu");
	jw_str(&w, m->cpu);
	jw_key(&w, "cpus");
	jw_int(&w, m->cpus);
	jw_key(&w, "last_cache_bytes");
	jw_uint(&w, m->cache);
	jw_key(&w, "read_bytes");
	jw_uint(&w, m->buffer);
	jw_key(&w, "runs");
	jw_int(&w, m->runs);
	jw_key(&w, "threads");
	jw_arr(&w);
	for (size_t i = 0; i < m->counts; i++)
		json_count(m, i, &w);
	jw_arr_end(&w);
	jw_obj_end(&w);
	buf_str(b, "\n");
}
