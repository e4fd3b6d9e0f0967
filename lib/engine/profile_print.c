/* The statistics of a profile, as a table or as one JSON object, beside what the machine was measured to do. */
#include <unistd.h>

#include "base/json.h"
#include "base/time.h"
#include "engine/machine.h"
#include "engine/profile_impl.h"

enum { RUNS = 5 };

struct limits { double read, peak; }; /* bytes and operations a second, 0: not known */

static struct limits measure(const struct profile *p)
{
	struct machine_limits l;

	if (!p->s)
		return (struct limits){ 0 };
	l = machine_limits(p->s, RUNS);
	if (!p->round || l.bf16.best < l.f32.best)
		l.bf16 = l.f32;
	return (struct limits){ .read = l.read.best, .peak = l.bf16.best };
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

/* What a stage did, as rates and shares. */
struct figures { double share, read, of_read, compute, of_peak; };

static struct figures figures(const struct stage_sum *s, int64_t all_ns, const struct limits *l)
{
	struct figures f;

	f.share = ratio((double)s->ns, (double)all_ns);
	f.read = ratio((double)s->weight_bytes * 1e9, (double)s->ns);
	f.compute = ratio((double)s->operations * 1e9, (double)s->ns);
	f.of_read = ratio(f.read, l->read);
	f.of_peak = ratio(f.compute, l->peak);
	return f;
}

/* All stages together, and what of the steps' time lies in none of them; *all_ns: the steps and the sampling. */
static void sum_up(const struct profile_sums *sums, struct stage_sum *all, struct stage_sum *other)
{
	const struct stage_sum *sample = &sums->stage[STAGE_SAMPLE];

	*all = *other = (struct stage_sum){ 0 };
	for (int i = 0; i < STAGE_COUNT; i++) {
		all->weight_bytes += sums->stage[i].weight_bytes;
		all->cache_bytes += sums->stage[i].cache_bytes;
		all->operations += sums->stage[i].operations;
		other->ns -= sums->stage[i].ns;
	}
	all->calls = sums->steps;
	all->ns = sums->step_ns + sample->ns;
	other->ns += all->ns;
	other->calls = sums->steps;
}

/* The share of transfers' time in which something was computed. */
static double hidden(const struct profile_sums *s)
{
	int64_t exposed = s->stage[STAGE_WAIT_DISPATCH].ns + s->stage[STAGE_WAIT_COMBINE].ns;

	return exposed < s->transfer_ns ? 1 - ratio((double)exposed, (double)s->transfer_ns) : 0;
}

/* ---- a table ---- */

static void put_row(struct buf *b, const char *name, const struct stage_sum *s, int64_t all_ns,
	const struct limits *l)
{
	struct figures f = figures(s, all_ns, l);

	buf_printf(b, "%-13s %9llu %11.3f %6.1f %9.1f", name, (unsigned long long)s->calls, (double)s->ns * 1e-6,
		100 * f.share, ratio((double)s->ns * 1e-3, (double)s->calls));
	if (s->weight_bytes)
		buf_printf(b, " %9.1f %6.1f", f.read * 1e-9, 100 * f.of_read);
	else
		buf_printf(b, " %9s %6s", "-", "-");
	if (s->operations)
		buf_printf(b, " %9.1f %6.1f", f.compute * 1e-9, 100 * f.of_peak);
	else
		buf_printf(b, " %9s %6s", "-", "-");
	if (s->cache_bytes)
		buf_printf(b, " %9.1f\n", (double)s->cache_bytes * 1e-6);
	else
		buf_printf(b, " %9s\n", "-");
}

static void table(const struct profile *p, const struct limits *l, int64_t run_ns, struct buf *b)
{
	const struct profile_sums *s = &p->sums;
	struct stage_sum all, other;
	double run = (double)run_ns * 1e-9;

	sum_up(s, &all, &other);
	buf_printf(b, "%s: %llu step%s, %llu token%s in, %llu out, in %.3f s, of which %.3f s in steps; %.1f in and "
		"%.1f out a second of steps\n", p->o.program, (unsigned long long)s->steps, plural(s->steps),
		(unsigned long long)s->rows, plural(s->rows), (unsigned long long)s->out, run, (double)all.ns * 1e-9,
		ratio((double)s->rows * 1e9, (double)all.ns),
		ratio((double)s->out * 1e9, (double)all.ns));
	if (p->s)
		buf_printf(b, "limits: reading %.1f GB/s, %.1f GFLOP/s; measured just now, %d thread%s, kernels %s\n",
			l->read * 1e-9, l->peak * 1e-9, kern_threads(p->s), plural((uint64_t)kern_threads(p->s)),
			kern_set_name(p->s));
	buf_printf(b, "%-13s %9s %11s %6s %9s %9s %6s %9s %6s %9s\n", "stage", "calls", "ms", "%", "us/call", "GB/s",
		"% max", "GFLOP/s", "% max", "KV MB");
	for (int i = 0; i < STAGE_COUNT; i++)
		if (s->stage[i].calls)
			put_row(b, stage_name((enum stage_id)i), &s->stage[i], all.ns, l);
	put_row(b, "other", &other, all.ns, l);
	put_row(b, "steps", &all, all.ns, l);
	if (s->transfers)
		buf_printf(b, "communication: %llu transfers, %.1f MB, %.3f ms on their way, of which %.1f %% hidden; "
			"%llu step%s of others\n", (unsigned long long)s->transfers, (double)s->transfer_bytes * 1e-6,
			(double)s->transfer_ns * 1e-6, 100 * hidden(s), (unsigned long long)s->attended,
			plural(s->attended));
	if (p->add)
		p->add(p->add_ctx, b, NULL);
}

/* ---- JSON ---- */

static void real(struct jw *w, const char *key, double v)
{
	jw_key(w, key);
	jw_real(w, v);
}

static void whole(struct jw *w, const char *key, uint64_t v)
{
	jw_key(w, key);
	jw_uint(w, v);
}

static void json_row(struct jw *w, const char *name, const struct stage_sum *s, int64_t all_ns,
	const struct limits *l)
{
	struct figures f = figures(s, all_ns, l);

	jw_key(w, name);
	jw_obj(w);
	whole(w, "calls", s->calls);
	whole(w, "ns", (uint64_t)s->ns);
	whole(w, "weight_bytes", s->weight_bytes);
	whole(w, "cache_bytes", s->cache_bytes);
	whole(w, "operations", s->operations);
	real(w, "share", f.share);
	real(w, "weight_bytes_per_s", f.read);
	real(w, "of_read", f.of_read);
	real(w, "operations_per_s", f.compute);
	real(w, "of_peak", f.of_peak);
	jw_obj_end(w);
}

static void object(const struct profile *p, const struct limits *l, int64_t run_ns, struct buf *b)
{
	const struct profile_sums *s = &p->sums;
	struct stage_sum all, other;
	struct jw w;

	sum_up(s, &all, &other);
	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "program");
	jw_str(&w, p->o.program);
	jw_key(&w, "pid");
	jw_int(&w, getpid());
	jw_key(&w, "stats");
	jw_obj(&w);
	whole(&w, "steps", s->steps);
	whole(&w, "tokens_in", s->rows);
	whole(&w, "tokens_out", s->out);
	whole(&w, "run_ns", (uint64_t)run_ns);
	whole(&w, "threads", p->s ? (uint64_t)kern_threads(p->s) : 0);
	jw_key(&w, "kernels");
	jw_str(&w, p->s ? kern_set_name(p->s) : "");
	real(&w, "read_limit", l->read);
	real(&w, "peak_limit", l->peak);
	jw_key(&w, "stages");
	jw_obj(&w);
	for (int i = 0; i < STAGE_COUNT; i++)
		if (s->stage[i].calls)
			json_row(&w, stage_name((enum stage_id)i), &s->stage[i], all.ns, l);
	json_row(&w, "other", &other, all.ns, l);
	json_row(&w, "steps", &all, all.ns, l);
	jw_obj_end(&w);
	if (s->transfers) {
		whole(&w, "attended_steps", s->attended);
		whole(&w, "transfers", s->transfers);
		whole(&w, "transfer_bytes", s->transfer_bytes);
		whole(&w, "transfer_ns", (uint64_t)s->transfer_ns);
		real(&w, "transfer_hidden", hidden(s));
	}
	if (p->add)
		p->add(p->add_ctx, NULL, &w);
	jw_obj_end(&w);
	jw_obj_end(&w);
	buf_str(b, "\n");
}

void profile_print(const struct profile *p)
{
	int64_t run_ns = time_mono_ns() - p->began;
	struct limits l = measure(p);
	struct buf b = { 0 };
	ssize_t r = 0;

	if (p->o.json)
		object(p, &l, run_ns, &b);
	else
		table(p, &l, run_ns, &b);
	for (size_t at = 0; at < b.len && !b.nomem && r >= 0; at += (size_t)(r > 0 ? r : 0))
		r = write(STDERR_FILENO, b.p + at, b.len - at);
	buf_free(&b);
}
