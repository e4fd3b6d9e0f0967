/* What a rank counts for its load frames. */
#include "ep/load.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/time.h"
#include "ep/placement.h"

enum { CHOSEN, COMPUTED, KINDS };

struct load {
	struct load_config c;
	uint32_t *now[KINDS];         /* [layers, experts] of the step that goes on */
	bool *touched;                /* [layers] in that step */
	int64_t *sum[KINDS];          /* [layers, experts] of the interval */
	int64_t *taken[KINDS];        /* what was handed out last */
	struct load_peer *peers;      /* [world] of the interval */
	struct load_peer *last;       /* [world] totals when they were said last */
	struct load_peer *taken_peers;
	uint64_t steps, rows;
	int64_t since;
};

int load_new(struct load **out, const struct load_config *c, struct ds_err *err)
{
	struct load *l = mem_calloc(1, sizeof(*l));
	size_t cells;
	bool room = l && mem_mul(c->layers, c->experts, &cells);

	*out = NULL;
	for (size_t k = 0; room && k < KINDS; k++) {
		l->now[k] = mem_calloc(cells, sizeof(*l->now[k]));
		l->sum[k] = mem_calloc(cells, sizeof(*l->sum[k]));
		l->taken[k] = mem_calloc(cells, sizeof(*l->taken[k]));
		room = l->now[k] && l->sum[k] && l->taken[k];
	}
	if (room) {
		l->touched = mem_calloc(c->layers, sizeof(*l->touched));
		l->peers = mem_calloc(c->world, sizeof(*l->peers));
		l->last = mem_calloc(c->world, sizeof(*l->last));
		l->taken_peers = mem_calloc(c->world, sizeof(*l->taken_peers));
		room = l->touched && l->peers && l->last && l->taken_peers;
	}
	if (!room) {
		load_free(l);
		return err_nomem(err, c->layers * c->experts * sizeof(int64_t), "counts of experts");
	}
	l->c = *c;
	l->since = time_mono_ns();
	*out = l;
	return 0;
}

void load_free(struct load *l)
{
	if (!l)
		return;
	for (size_t k = 0; k < KINDS; k++) {
		free(l->now[k]);
		free(l->sum[k]);
		free(l->taken[k]);
	}
	free(l->touched);
	free(l->peers);
	free(l->last);
	free(l->taken_peers);
	free(l);
}

/* ---- counting ---- */

void load_count(struct load *l, size_t layer, const uint32_t *ids, size_t n)
{
	uint32_t *now = l->now[CHOSEN] + layer * l->c.experts;

	for (size_t i = 0; i < n; i++)
		if (ids[i] != EP_NONE)
			now[ids[i]]++;
	l->touched[layer] |= n > 0;
}

void load_received(struct load *l, size_t layer, size_t expert, size_t rows)
{
	l->now[COMPUTED][layer * l->c.experts + expert] += (uint32_t)rows;
	l->touched[layer] |= rows > 0;
}

/* The step's counts go into the sums, or nowhere. */
static void end_step(struct load *l, bool counts)
{
	const size_t n = l->c.experts;

	for (size_t layer = 0; layer < l->c.layers; layer++) {
		if (!l->touched[layer])
			continue;
		for (size_t k = 0; k < KINDS; k++) {
			uint32_t *now = l->now[k] + layer * n;
			int64_t *sum = l->sum[k] + layer * n;

			for (size_t e = 0; e < n; e++) {
				sum[e] += counts ? now[e] : 0;
				now[e] = 0;
			}
		}
		l->touched[layer] = false;
	}
}

void load_step(struct load *l, size_t rows)
{
	end_step(l, true);
	l->steps++;
	l->rows += rows;
}

void load_undo(struct load *l)
{
	end_step(l, false);
}

static uint64_t since(uint64_t now, uint64_t *last)
{
	uint64_t more = now >= *last ? now - *last : now;

	*last = now;
	return more;
}

void load_peer(struct load *l, size_t peer, const struct transport_peer *total)
{
	struct load_peer *p = &l->peers[peer], *last = &l->last[peer];

	p->sent_bytes += since(total->sent_bytes, &last->sent_bytes);
	p->received_bytes += since(total->received_bytes, &last->received_bytes);
	p->waited_ns += since((uint64_t)total->waited_ns, &last->waited_ns);
}

/* ---- handing out ---- */

void load_take(struct load *l, uint64_t epoch, uint64_t plan, struct load_message *m)
{
	int64_t now = time_mono_ns();
	struct load_peer *peers = l->peers;

	for (size_t k = 0; k < KINDS; k++) {
		int64_t *sum = l->sum[k];

		l->sum[k] = l->taken[k];
		l->taken[k] = sum;
		memset(l->sum[k], 0, l->c.layers * l->c.experts * sizeof(*sum));
	}
	l->peers = l->taken_peers;
	l->taken_peers = peers;
	memset(l->peers, 0, l->c.world * sizeof(*peers));
	*m = (struct load_message){ .rank = l->c.rank, .world = l->c.world, .epoch = epoch, .plan = plan,
		.t_ns = (uint64_t)time_wall_ns(), .interval_ns = (uint64_t)(now - l->since), .steps = l->steps,
		.rows = l->rows, .layer = l->c.layer, .layers = l->c.layers, .experts = l->c.experts,
		.counts = l->taken[CHOSEN], .received = l->taken[COMPUTED], .peers = l->taken_peers };
	l->since = now;
	l->steps = l->rows = 0;
}
