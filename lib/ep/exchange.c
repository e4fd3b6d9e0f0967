/*
 * Dispatch and combine.
 *
 * A dispatch message holds, little-endian: u32 tokens, pairs; u32 experts of each token; u32 physical expert of each
 * pair, counted within the receiving rank; from the next multiple of 64 on the tokens' rows.  Its pairs are in the
 * order of the source's tokens and their choices.  A combine message is the outputs of its pairs in that order.
 *
 * A rank that has rows in a round sends a message to every member, an empty one too, and gets one back from each: so a
 * slot has been read when it is written again, and no flow control is needed.  Who has rows is known from the vote.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/time.h"
#include "ep/ep_impl.h"

enum { HEAD = 2 * sizeof(uint32_t), ALIGN = 64 };

static size_t rows_at(size_t tokens, size_t pairs)
{
	return round_up(HEAD + (tokens + pairs) * sizeof(uint32_t), ALIGN);
}

size_t exchange_dispatch_bytes(const struct ep_config *c)
{
	return rows_at(c->tokens, c->tokens * c->shape.top_k) + c->tokens * c->shape.row_bytes;
}

size_t exchange_combine_bytes(const struct ep_config *c)
{
	return c->tokens * c->shape.top_k * c->shape.out_bytes;
}

/* ---- memory ---- */

static void *part(const struct ep *ep, size_t *at, size_t n, size_t size)
{
	void *p = ep->memory ? ep->memory + *at : NULL;

	*at += round_up(n * size, ALIGN);
	return p;
}

static size_t lay_out(struct ep *ep)
{
	size_t w = ep->c.unit.world, t = ep->c.tokens, k = ep->c.shape.top_k, at = 0;

	for (size_t i = 0; i < EP_LANES; i++) {
		struct exchange *x = &ep->x[i];

		x->tokens_to = part(ep, &at, w, sizeof(*x->tokens_to));
		x->pairs_to = part(ep, &at, w, sizeof(*x->pairs_to));
		x->pairs_from = part(ep, &at, w, sizeof(*x->pairs_from));
		x->message = part(ep, &at, w, sizeof(*x->message));
		x->filled = part(ep, &at, w, sizeof(*x->filled));
		x->chosen = part(ep, &at, t * k, sizeof(*x->chosen));
		x->index = part(ep, &at, t * k, sizeof(*x->index));
		x->copy_row = part(ep, &at, t * (k < w ? k : w), sizeof(*x->copy_row));
		x->copy_dst = part(ep, &at, t * (k < w ? k : w), sizeof(*x->copy_dst));
		x->out = part(ep, &at, t * k, sizeof(*x->out));
		x->src = part(ep, &at, w * t, sizeof(*x->src));
		x->gather = part(ep, &at, w * t * k, sizeof(*x->gather));
		x->back = part(ep, &at, w * t * k, sizeof(*x->back));
	}
	return at;
}

int exchange_reserve(struct ep *ep, struct ds_err *err)
{
	void *p;

	ep->memory_bytes = lay_out(ep);
	p = mmap(NULL, ep->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return err_set(err, DS_OS, "out of memory: %zu bytes for exchanges of %zu tokens; lower "
			"--dispatch-tokens", ep->memory_bytes, ep->c.tokens);
	ep->memory = p;
	lay_out(ep);
	return 0;
}

int exchange_place(struct ep *ep, const struct placement *p, struct ds_err *err)
{
	size_t slots = 0;
	uint32_t *counts;

	for (size_t i = 0; i < p->layers; i++)
		slots = p->layer[i].slots > slots ? p->layer[i].slots : slots;
	counts = mem_array((1 + EP_LANES) * (slots + 2), sizeof(*counts));
	if (!counts)
		return err_nomem(err, (1 + EP_LANES) * (slots + 2) * sizeof(*counts), "a placement's counts");
	free(ep->counts);
	ep->counts = counts;
	for (size_t i = 0; i < EP_LANES; i++)
		ep->x[i].first = counts + (1 + i) * (slots + 2);
	return 0;
}

void exchange_reset(struct ep *ep)
{
	for (size_t i = 0; i < EP_LANES; i++) {
		ep->x[i].state = LANE_FREE;
		ep->x[i].round = 0;
	}
}

/* ---- dispatch: at the source ---- */

static struct exchange *in_state(struct ep *ep, size_t lane, enum lane_state state)
{
	struct exchange *x = &ep->x[lane];

	return x->state == state ? x : NULL;
}

static int out_of_turn(const struct ep *ep, size_t lane, const char *what, struct ds_err *err)
{
	return err_set(err, DS_BUG, "%s of lane %zu out of turn: its state is %d", what, lane, (int)ep->x[lane].state);
}

/* Rows of a member in this round of a lane. */
static size_t rows_of(const struct ep *ep, size_t rank, size_t lane, size_t round)
{
	size_t all = ep->step.rows[rank][lane], before = round * ep->c.tokens;

	if (all <= before)
		return 0;
	return all - before < ep->c.tokens ? all - before : ep->c.tokens;
}

static int check_dispatch(const struct ep *ep, size_t lane, size_t layer, size_t row_bytes, size_t rows,
	struct ds_err *err)
{
	const struct exchange *x = &ep->x[lane];
	size_t voted;

	if (x->state != LANE_FREE)
		return out_of_turn(ep, lane, "a dispatch", err);
	if (rows > ep->c.tokens)
		return err_set(err, DS_BUG, "a dispatch of %zu tokens, more than the %zu of a round", rows,
			ep->c.tokens);
	if (row_bytes > ep->c.shape.row_bytes)
		return err_set(err, DS_BUG, "a dispatch of rows of %zu bytes, more than %zu", row_bytes,
			ep->c.shape.row_bytes);
	if (layer >= ep->c.shape.layers || lane >= ep->step.lanes)
		return err_set(err, DS_BUG, "a dispatch in layer %zu and lane %zu, there are %zu and %zu", layer, lane,
			ep->c.shape.layers, ep->step.lanes);
	voted = rows_of(ep, ep->c.unit.rank, lane, x->round);
	if (rows != voted)
		return err_set(err, DS_BUG, "a dispatch of %zu tokens in round %zu, %zu were voted for", rows,
			x->round, voted);
	return 0;
}

/* Which rank holds this choice; false where it is of no expert. */
static bool rank_of(const struct exchange *x, size_t choice, size_t *rank)
{
	if (x->chosen[choice] == EP_NONE)
		return false;
	*rank = x->place->rank[x->chosen[choice]];
	return true;
}

/* True where an earlier choice of the token went to the same rank: the token is there already. */
static bool seen(const struct exchange *x, size_t token, size_t k, size_t top_k)
{
	size_t rank, before;

	if (!rank_of(x, token * top_k + k, &rank))
		return true;
	for (size_t i = 0; i < k; i++)
		if (rank_of(x, token * top_k + i, &before) && before == rank)
			return true;
	return false;
}

static void count(struct ep *ep, struct exchange *x)
{
	size_t top_k = ep->c.shape.top_k, rank;

	memset(x->tokens_to, 0, ep->c.unit.world * sizeof(*x->tokens_to));
	memset(x->pairs_to, 0, ep->c.unit.world * sizeof(*x->pairs_to));
	for (size_t t = 0; t < x->rows; t++)
		for (size_t k = 0; k < top_k; k++) {
			if (!rank_of(x, t * top_k + k, &rank))
				continue;
			x->pairs_to[rank]++;
			x->tokens_to[rank] += !seen(x, t, k, top_k);
		}
}

static void begin_messages(struct ep *ep, size_t lane, struct exchange *x)
{
	const struct ranks *members = &ep->step.members;

	for (size_t r = ranks_next(members, 0); r < EP_MAX_WORLD; r = ranks_next(members, r + 1)) {
		uint32_t *head = transport_slot(unit_transport(ep->unit), r, SLOT_DISPATCH, lane);

		head[0] = x->tokens_to[r];
		head[1] = x->pairs_to[r];
		memset(head + 2, 0, x->tokens_to[r] * sizeof(*head));
		x->message[r] = (unsigned char *)head;
		x->filled[r] = 0;
		x->pairs_to[r] = 0; /* counted again as they are filled in */
	}
}

/* Writes the pairs, and lists where the rows are to be written. */
static size_t fill_messages(struct ep *ep, struct exchange *x)
{
	size_t top_k = ep->c.shape.top_k, copies = 0, rank;

	for (size_t t = 0; t < x->rows; t++)
		for (size_t k = 0; k < top_k; k++) {
			size_t i = t * top_k + k;
			uint32_t *head, token;

			if (!rank_of(x, i, &rank))
				continue;
			head = (uint32_t *)(void *)x->message[rank];
			token = x->filled[rank];
			if (!seen(x, t, k, top_k)) {
				x->filled[rank]++;
				x->copy_row[copies] = (uint32_t)t;
				x->copy_dst[copies++] = x->message[rank] + rows_at(head[0], head[1]) +
					token * x->row_bytes;
			} else {
				token--;
			}
			head[2 + token]++;
			x->index[i] = x->pairs_to[rank]++;
			head[2 + head[0] + x->index[i]] = x->chosen[i] - x->place->first[rank];
		}
	return copies;
}

int ep_dispatch(struct ep *ep, size_t lane, size_t layer, size_t row_bytes, const uint32_t *ids, size_t rows,
	struct ep_rows *to, struct ds_err *err)
{
	struct exchange *x = &ep->x[lane];
	const struct ranks *members = &ep->step.members;
	int rc = check_dispatch(ep, lane, layer, row_bytes, rows, err);

	if (rc)
		return rc;
	x->layer = layer;
	x->place = &ep->place->layer[layer];
	x->seq = unit_seq(ep->unit, SLOT_DISPATCH, lane);
	x->rows = rows;
	x->row_bytes = row_bytes;
	x->active = (struct ranks){ { 0 } };
	for (size_t r = ranks_next(members, 0); r < EP_MAX_WORLD; r = ranks_next(members, r + 1))
		if (rows_of(ep, r, lane, x->round))
			ranks_add(&x->active, r);
	*to = (struct ep_rows){ 0, x->copy_row, x->copy_dst };
	x->state = LANE_DISPATCHED;
	if (!rows)
		return 0;
	load_count(ep->load, layer, ids, rows * ep->c.shape.top_k);
	placement_choose(x->place, ep->c.unit.rank, ids, rows * ep->c.shape.top_k, x->chosen, ep->counts);
	count(ep, x);
	begin_messages(ep, lane, x);
	to->n = fill_messages(ep, x);
	return 0;
}

void ep_dispatch_post(struct ep *ep, size_t lane)
{
	const struct ranks *members = &ep->step.members;
	struct exchange *x = in_state(ep, lane, LANE_DISPATCHED);

	if (!x)
		return;
	x->state = LANE_POSTED;
	x->span[SLOT_DISPATCH] = (struct ep_span){ .begin = time_mono_ns() };
	for (size_t r = ranks_next(members, 0); x->rows && r < EP_MAX_WORLD; r = ranks_next(members, r + 1)) {
		size_t tokens = x->tokens_to[r], bytes = rows_at(tokens, x->pairs_to[r]);

		bytes += tokens * x->row_bytes;
		x->span[SLOT_DISPATCH].bytes += r != ep->c.unit.rank ? bytes : 0;
		transport_post(unit_transport(ep->unit), r, SLOT_DISPATCH, lane, x->seq, bytes);
	}
}

/* ---- dispatch: at the experts ---- */

/* Waits, and notes when the last message was there. */
static int await(struct ep *ep, size_t lane, enum slot_kind kind, uint64_t seq, const struct ranks *from)
{
	struct transport *t = unit_transport(ep->unit);
	struct ep_span *span = &ep->x[lane].span[kind];
	int rc = transport_wait(t, kind, lane, seq, from);

	ep->broken |= rc == EP_BROKEN;
	span->end = span->begin;
	for (size_t r = ranks_next(from, 0); !rc && r < EP_MAX_WORLD; r = ranks_next(from, r + 1)) {
		int64_t when;
		size_t bytes;

		transport_message(t, r, kind, lane, &bytes, &when);
		span->end = when > span->end ? when : span->end;
	}
	return rc;
}

/* A message of this rank makes no sense, err says which: the step is broken off, and goes on without it. */
static int blame(struct ep *ep, size_t rank, struct ds_err *err)
{
	int rc = unit_blame(ep->unit, rank, err);

	ep->broken |= rc == EP_BROKEN;
	return rc;
}

/* A message's tables, checked: NULL where they make no sense.  most: rows that its sender has voted for. */
static const uint32_t *tables(const struct ep *ep, const struct exchange *x, size_t most, const void *message,
	size_t bytes)
{
	const uint32_t *head = message;
	const struct ep_shape *s = &ep->c.shape;
	size_t me = ep->c.unit.rank, experts = x->place->first[me + 1] - x->place->first[me];
	uint64_t pairs = 0;

	if (bytes < rows_at(0, 0) || head[0] > most || head[1] > ep->c.tokens * s->top_k ||
	    bytes != rows_at(head[0], head[1]) + head[0] * x->row_bytes)
		return NULL;
	for (size_t i = 0; i < head[0]; i++)
		pairs += head[2 + i];
	if (pairs != head[1])
		return NULL;
	for (size_t i = 0; i < pairs; i++)
		if (head[2 + head[0] + i] >= experts)
			return NULL;
	return head;
}

/* First pass over a message: how many pairs each expert has; first[] stands two places up (stage_dispatch's trick). */
static int count_pairs(struct ep *ep, struct exchange *x, size_t lane, size_t r, struct ds_err *err)
{
	int64_t when;
	size_t bytes;
	const void *message = transport_message(unit_transport(ep->unit), r, SLOT_DISPATCH, lane, &bytes, &when);
	const uint32_t *head = tables(ep, x, rows_of(ep, r, lane, x->round), message, bytes);

	if (!head) {
		err_set(err, DS_PROTO, "it sent a dispatch of %zu bytes that makes no sense", bytes);
		return blame(ep, r, err);
	}
	for (size_t i = 0; i < head[1]; i++)
		x->first[head[2 + head[0] + i] + 2]++;
	x->pairs_from[r] = head[1];
	x->pairs += head[1];
	return 0;
}

/* Second pass: rows and pairs in their places. */
static size_t list_pairs(struct ep *ep, struct exchange *x, size_t lane, size_t r, size_t row)
{
	struct transport *t = unit_transport(ep->unit);
	int64_t when;
	size_t bytes, pair = 0;
	const unsigned char *message = transport_message(t, r, SLOT_DISPATCH, lane, &bytes, &when);
	unsigned char *back = transport_slot(t, r, SLOT_COMBINE, lane);
	const uint32_t *head = (const uint32_t *)(const void *)message;

	for (size_t i = 0; i < head[0]; i++) {
		x->src[row] = message + rows_at(head[0], head[1]) + i * x->row_bytes;
		for (size_t k = 0; k < head[2 + i]; k++, pair++) {
			uint32_t at = x->first[head[2 + head[0] + pair] + 1]++;

			x->gather[at] = (uint32_t)row;
			x->back[at] = back + pair * ep->c.shape.out_bytes;
		}
		row++;
	}
	return row;
}

int ep_arrive(struct ep *ep, size_t lane, struct ep_arrived *a, struct ds_err *err)
{
	struct exchange *x = in_state(ep, lane, LANE_POSTED);
	size_t me = ep->c.unit.rank, row = 0;
	int rc = x ? await(ep, lane, SLOT_DISPATCH, x->seq, &x->active) : out_of_turn(ep, lane, "an arrival", err);

	if (rc)
		return rc;
	*a = (struct ep_arrived){ .src = x->src, .first = x->first, .gather = x->gather };
	a->experts = x->place->first[me + 1] - x->place->first[me];
	a->logical = x->place->logical + x->place->first[me];
	memset(x->first, 0, (a->experts + 2) * sizeof(*x->first));
	x->pairs = 0;
	for (size_t r = ranks_next(&x->active, 0); !rc && r < EP_MAX_WORLD; r = ranks_next(&x->active, r + 1))
		rc = count_pairs(ep, x, lane, r, err);
	if (rc)
		return rc;
	for (size_t i = 2; i < a->experts + 2; i++)
		x->first[i] += x->first[i - 1];
	for (size_t r = ranks_next(&x->active, 0); r < EP_MAX_WORLD; r = ranks_next(&x->active, r + 1))
		row = list_pairs(ep, x, lane, r, row);
	for (size_t i = 0; i < a->experts; i++)
		load_received(ep->load, x->layer, a->logical[i], a->first[i + 1] - a->first[i]);
	a->rows = row;
	a->pairs = x->pairs;
	x->state = LANE_ARRIVED;
	return 0;
}

/* ---- combine ---- */

void *const *ep_return(struct ep *ep, size_t lane)
{
	return ep->x[lane].back;
}

void ep_return_post(struct ep *ep, size_t lane)
{
	struct exchange *x = in_state(ep, lane, LANE_ARRIVED);

	if (!x)
		return;
	x->state = LANE_RETURNED;
	x->seq_back = unit_seq(ep->unit, SLOT_COMBINE, lane);
	x->span[SLOT_COMBINE] = (struct ep_span){ .begin = time_mono_ns() };
	for (size_t r = ranks_next(&x->active, 0); r < EP_MAX_WORLD; r = ranks_next(&x->active, r + 1)) {
		size_t bytes = x->pairs_from[r] * ep->c.shape.out_bytes;

		x->span[SLOT_COMBINE].bytes += r != ep->c.unit.rank ? bytes : 0;
		transport_post(unit_transport(ep->unit), r, SLOT_COMBINE, lane, x->seq_back, bytes);
	}
}

/* Where each choice's row is; messages that lack some make no sense. */
static int list_outputs(struct ep *ep, struct exchange *x, size_t lane, struct ds_err *err)
{
	const struct ranks *members = &ep->step.members;
	size_t n = x->rows * ep->c.shape.top_k, rank;

	for (size_t r = ranks_next(members, 0); r < EP_MAX_WORLD; r = ranks_next(members, r + 1)) {
		int64_t when;
		size_t bytes;

		x->message[r] = (unsigned char *)(uintptr_t)transport_message(unit_transport(ep->unit), r,
			SLOT_COMBINE, lane, &bytes, &when);
		if (bytes != x->pairs_to[r] * ep->c.shape.out_bytes) {
			err_set(err, DS_PROTO, "it returned %zu bytes for %u outputs of %zu", bytes, x->pairs_to[r],
				ep->c.shape.out_bytes);
			return blame(ep, r, err);
		}
	}
	for (size_t i = 0; i < n; i++)
		x->out[i] = rank_of(x, i, &rank) ? x->message[rank] + x->index[i] * ep->c.shape.out_bytes : NULL;
	return 0;
}

int ep_collect(struct ep *ep, size_t lane, const void *const **rows, struct ds_err *err)
{
	struct exchange *x = in_state(ep, lane, LANE_RETURNED);
	int rc = 0;

	if (!x)
		return out_of_turn(ep, lane, "a collection", err);
	*rows = x->out;
	if (x->rows) {
		rc = await(ep, lane, SLOT_COMBINE, x->seq_back, &ep->step.members);
		rc = rc ? rc : list_outputs(ep, x, lane, err);
	}
	x->round = (x->round + 1) % ep->rounds[lane];
	x->state = LANE_FREE;
	return rc;
}

struct ep_span ep_span(const struct ep *ep, size_t lane, enum slot_kind kind)
{
	return ep->x[lane].span[kind];
}
