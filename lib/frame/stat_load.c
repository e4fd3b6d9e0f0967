/* Load frames in ds-frame stat. */
#include "frame/stat_load.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Room for this rank and its peers; what was counted stays. */
static int grow(struct stat_load *s, const struct load_message *m, struct ds_err *err)
{
	struct stat_rank *ranks;
	uint64_t *waited;

	if (m->rank >= s->n) {
		ranks = mem_realloc(s->ranks, m->rank + 1, sizeof *ranks);
		if (!ranks)
			return err_nomem(err, m->rank * sizeof *ranks, "ranks");
		memset(ranks + s->n, 0, (m->rank + 1 - s->n) * sizeof *ranks);
		s->ranks = ranks;
		s->n = m->rank + 1;
	}
	ranks = &s->ranks[m->rank];
	if (m->world > ranks->world) {
		waited = mem_realloc(ranks->waited_ns, m->world, sizeof *waited);
		if (!waited)
			return err_nomem(err, m->world * sizeof *waited, "ranks");
		memset(waited + ranks->world, 0, (m->world - ranks->world) * sizeof *waited);
		ranks->waited_ns = waited;
		ranks->world = m->world;
	}
	return 0;
}

int stat_load_add(struct stat_load *s, const struct frame *f, struct ds_err *err)
{
	struct load_message m;
	struct stat_rank *r;
	int rc = load_get(f, &m, err);

	if (!rc)
		rc = grow(s, &m, err);
	if (rc)
		return rc;
	r = &s->ranks[m.rank];
	r->frames++;
	r->interval_ns += m.interval_ns;
	r->steps += m.steps;
	r->rows += m.rows;
	for (size_t i = 0; i < m.layers * m.experts; i++) {
		r->chosen += (uint64_t)m.counts[i];
		r->computed += (uint64_t)m.received[i];
	}
	for (size_t i = 0; i < m.world; i++) {
		struct load_peer p = load_peer_at(f, i);

		r->sent_bytes += p.sent_bytes;
		r->received_bytes += p.received_bytes;
		r->waited_ns[i] += p.waited_ns;
	}
	return 0;
}

/* For all peers; *most: the one it waited for longest, the world where it waited for none. */
static uint64_t waited(const struct stat_rank *r, size_t *most)
{
	uint64_t sum = 0;

	*most = r->world;
	for (size_t i = 0; i < r->world; i++) {
		sum += r->waited_ns[i];
		if (r->waited_ns[i] && (*most == r->world || r->waited_ns[i] > r->waited_ns[*most]))
			*most = i;
	}
	return sum;
}

void stat_load_text(const struct stat_load *s, struct buf *b)
{
	if (s->n)
		buf_printf(b, "\n%-6s %8s %10s %8s %10s %12s %12s %14s %14s %10s  %s\n", "rank", "frames", "seconds",
			"steps", "tokens", "chosen", "computed", "sent", "received", "waited ms", "longest for");
	for (size_t i = 0; i < s->n; i++) {
		const struct stat_rank *r = &s->ranks[i];
		size_t most;
		uint64_t ns = waited(r, &most);

		if (!r->frames)
			continue;
		buf_printf(b, "%-6zu %8llu %10.1f %8llu %10llu %12llu %12llu %14llu %14llu %10.1f  ", i,
			(unsigned long long)r->frames, (double)r->interval_ns / 1e9, (unsigned long long)r->steps,
			(unsigned long long)r->rows, (unsigned long long)r->chosen, (unsigned long long)r->computed,
			(unsigned long long)r->sent_bytes, (unsigned long long)r->received_bytes, (double)ns / 1e6);
		if (most < r->world)
			buf_printf(b, "%zu\n", most);
		else
			buf_str(b, "-\n");
	}
}

static void put_rank(struct jw *w, size_t rank, const struct stat_rank *r)
{
	size_t most;
	const struct { const char *key; uint64_t v; } figures[] = {
		{ "rank", rank }, { "frames", r->frames }, { "interval_ns", r->interval_ns }, { "steps", r->steps },
		{ "rows", r->rows }, { "chosen", r->chosen }, { "computed", r->computed },
		{ "sent_bytes", r->sent_bytes }, { "received_bytes", r->received_bytes },
		{ "waited_ns", waited(r, &most) },
	};

	jw_obj(w);
	for (size_t i = 0; i < ARRAY_LEN(figures); i++)
		jw_put_uint(w, figures[i].key, figures[i].v);
	jw_key(w, "longest_for");
	if (most < r->world)
		jw_uint(w, most);
	else
		jw_null(w);
	jw_obj_end(w);
}

void stat_load_json(const struct stat_load *s, struct jw *w)
{
	jw_key(w, "loads");
	jw_arr(w);
	for (size_t i = 0; i < s->n; i++)
		if (s->ranks[i].frames)
			put_rank(w, i, &s->ranks[i]);
	jw_arr_end(w);
}

void stat_load_free(struct stat_load *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->ranks[i].waited_ns);
	free(s->ranks);
	*s = (struct stat_load){ 0 };
}
