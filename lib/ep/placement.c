/* Which rank holds which copies of which experts. */
#include "ep/placement.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- making one ---- */

/* One block of memory a layer, which `logical` begins. */
static bool layer_new(struct placement_layer *l, size_t slots, size_t experts, size_t world)
{
	size_t words;

	_Static_assert(sizeof(float) == sizeof(uint32_t), "weights lie behind the numbers");
	if (!mem_mul(slots, 4, &words) || words > SIZE_MAX - experts - world - 2)
		return false;
	l->logical = mem_calloc(words + experts + world + 2, sizeof(uint32_t));
	if (!l->logical)
		return false;
	l->slots = slots;
	l->copy = l->logical + slots;
	l->rank = l->copy + slots;
	l->first = l->rank + slots;
	l->copies = l->first + world + 1;
	l->weight = (float *)(void *)(l->copies + experts + 1);
	return true;
}

/* logical, first and weight are there: the rest of it follows from them.  The first expert without a copy, else
 * EP_NONE. */
static uint32_t layer_index(struct placement_layer *l, size_t experts, size_t world)
{
	for (size_t r = 0; r < world; r++)
		for (size_t s = l->first[r]; s < l->first[r + 1]; s++)
			l->rank[s] = (uint32_t)r;
	for (size_t s = 0; s < l->slots; s++)
		l->copies[l->logical[s] + 1]++;
	for (size_t e = 0; e < experts; e++) {
		if (!l->copies[e + 1])
			return (uint32_t)e;
		l->copies[e + 1] += l->copies[e];
	}
	/* copies[e] runs from the first entry of e to that of e + 1 while its copies are entered */
	for (size_t s = 0; s < l->slots; s++)
		l->copy[l->copies[l->logical[s]]++] = (uint32_t)s;
	memmove(l->copies + 1, l->copies, experts * sizeof(*l->copies));
	l->copies[0] = 0;
	return EP_NONE;
}

/* Weights, whatever their sum, become shares. */
static void layer_shares(struct placement_layer *l, size_t experts)
{
	for (size_t e = 0; e < experts; e++) {
		double sum = 0.0;

		for (size_t i = l->copies[e]; i < l->copies[e + 1]; i++)
			sum += (double)l->weight[l->copy[i]];
		for (size_t i = l->copies[e]; i < l->copies[e + 1]; i++) {
			float *w = &l->weight[l->copy[i]];

			*w = fmaxf((float)((double)*w / sum), FLT_MIN);
		}
	}
}

static int nomem(size_t slots, struct ds_err *err)
{
	return err_nomem(err, slots * sizeof(uint32_t), "the placement of experts");
}

static int placement_new(struct placement **p, size_t layers, size_t experts, size_t world, struct ds_err *err)
{
	*p = NULL;
	if (!world || world > EP_MAX_WORLD || !experts || experts >= EP_NONE)
		return err_set(err, DS_CONFIG, "cannot place %zu experts on %zu ranks: 1 to %d ranks hold at least 1",
			experts, world, EP_MAX_WORLD);
	*p = mem_calloc(1, sizeof(**p));
	if (*p)
		(*p)->layer = mem_calloc(layers ? layers : 1, sizeof(*(*p)->layer));
	if (!*p || !(*p)->layer) {
		free(*p);
		*p = NULL;
		return nomem(layers, err);
	}
	(*p)->layers = layers;
	(*p)->experts = experts;
	(*p)->world = world;
	return 0;
}

void placement_free(struct placement *p)
{
	if (!p)
		return;
	for (size_t l = 0; l < p->layers; l++)
		free(p->layer[l].logical);
	free(p->layer);
	free(p);
}

/* What was made, or nothing of it. */
static int hand_over(struct placement **p, struct placement *made, int rc)
{
	if (rc) {
		placement_free(made);
		made = NULL;
	}
	*p = made;
	return rc;
}

/* ---- the default ---- */

int placement_default(struct placement **p, size_t layers, size_t experts, size_t redundant, size_t world,
	struct ds_err *err)
{
	struct placement *n;
	size_t total = experts + redundant;
	int rc = placement_new(&n, layers, experts, world, err);

	*p = NULL;
	if (rc)
		return rc;
	if (total < world || total < redundant || total >= EP_NONE)
		rc = err_set(err, DS_CONFIG, "cannot place %zu experts and %zu redundant copies on %zu ranks: "
			"every rank holds at least one, all together less than 2^32", experts, redundant, world);
	for (size_t i = 0; !rc && i < layers; i++) {
		struct placement_layer *l = &n->layer[i];

		if (!layer_new(l, total, experts, world)) {
			rc = nomem(total, err);
			break;
		}
		for (size_t r = 0; r < world; r++)
			l->first[r + 1] = l->first[r] + (uint32_t)(total / world + (r < total % world));
		for (size_t s = 0; s < total; s++) {
			l->logical[s] = (uint32_t)(s % experts);
			l->weight[s] = 1.0f;
		}
		layer_index(l, experts, world);
		layer_shares(l, experts);
	}
	return hand_over(p, n, rc);
}

/* ---- from a map ---- */

/* How many slots are used. */
static int map_count(const struct placement *p, size_t layer, size_t slots, const uint32_t *map, const float *weight,
	size_t *used, struct ds_err *err)
{
	*used = 0;
	for (size_t s = 0; s < p->world * slots; s++) {
		if (map[s] == EP_NONE)
			continue;
		if (map[s] >= p->experts)
			return err_set(err, DS_DATA,
				"layer %zu of the placement: expert %u in slot %zu of rank %zu, there are %zu",
				layer, map[s], s % slots, s / slots, p->experts);
		if (weight && !(isfinite(weight[s]) && weight[s] > 0.0f))
			return err_set(err, DS_DATA, "layer %zu of the placement: the copy of expert %u on rank %zu has"
				" weight %g, not a finite one above 0", layer, map[s], s / slots, (double)weight[s]);
		++*used;
	}
	return 0;
}

static int map_layer(struct placement *p, size_t layer, size_t slots, const uint32_t *map, const float *weight,
	struct ds_err *err)
{
	struct placement_layer *l = &p->layer[layer];
	size_t used, n = 0;
	uint32_t missing;
	int rc = map_count(p, layer, slots, map, weight, &used, err);

	if (rc)
		return rc;
	if (!layer_new(l, used, p->experts, p->world))
		return nomem(used, err);
	for (size_t s = 0; s < p->world * slots; s++) {
		if (map[s] != EP_NONE) {
			l->logical[n] = map[s];
			l->weight[n++] = weight ? weight[s] : 1.0f;
		}
		l->first[s / slots + 1] = (uint32_t)n;
	}
	missing = layer_index(l, p->experts, p->world);
	if (missing != EP_NONE)
		return err_set(err, DS_DATA, "layer %zu of the placement: no rank has expert %u", layer, missing);
	layer_shares(l, p->experts);
	return 0;
}

int placement_from_map(struct placement **p, size_t layers, size_t experts, size_t world, size_t slots,
	const uint32_t *map, const float *weight, struct ds_err *err)
{
	struct placement *n;
	size_t row, all;
	int rc = placement_new(&n, layers, experts, world, err);

	*p = NULL;
	if (rc)
		return rc;
	if (!mem_mul(world, slots, &row) || !mem_mul(row, layers, &all) || row < experts || row >= EP_NONE)
		rc = err_set(err, DS_DATA,
			"a placement of %zu ranks with %zu slots each, of %zu layers: %zu experts have no room in it",
			world, slots, layers, experts);
	for (size_t i = 0; !rc && i < layers; i++)
		rc = map_layer(n, i, slots, map + i * row, weight ? weight + i * row : NULL, err);
	return hand_over(p, n, rc);
}

/* ---- without some ranks ---- */

/* home [experts]: where those go that have no copy on a member; size [world]: slots of each rank, with these. */
static size_t rehome(const struct placement_layer *l, size_t experts, size_t world, const struct ranks *members,
	uint32_t *home, uint32_t *size)
{
	size_t total = 0;

	for (size_t r = 0; r < world; r++) {
		size[r] = ranks_has(members, r) ? l->first[r + 1] - l->first[r] : 0;
		total += size[r];
	}
	for (size_t e = 0; e < experts; e++) {
		size_t to = EP_MAX_WORLD;
		bool left = false;

		home[e] = EP_NONE;
		for (size_t i = l->copies[e]; i < l->copies[e + 1]; i++)
			left |= ranks_has(members, l->rank[l->copy[i]]);
		if (left)
			continue;
		for (size_t r = ranks_next(members, 0); r < world; r = ranks_next(members, r + 1))
			if (to == EP_MAX_WORLD || size[r] < size[to])
				to = r;
		home[e] = (uint32_t)to;
		size[to]++;
		total++;
	}
	return total;
}

/* size becomes the next free slot of each rank. */
static void settle_layer(struct placement_layer *l, const struct placement_layer *whole, size_t experts, size_t world,
	const struct ranks *members, const uint32_t *home, uint32_t *size)
{
	for (size_t r = 0; r < world; r++) {
		l->first[r + 1] = l->first[r] + size[r];
		size[r] = l->first[r];
		for (size_t s = whole->first[r]; s < whole->first[r + 1] && ranks_has(members, r); s++) {
			l->logical[size[r]] = whole->logical[s];
			l->weight[size[r]++] = whole->weight[s];
		}
	}
	for (size_t e = 0; e < experts; e++) {
		if (home[e] == EP_NONE)
			continue;
		l->weight[size[home[e]]] = 1.0f;
		l->logical[size[home[e]]++] = (uint32_t)e;
	}
	layer_index(l, experts, world);
	layer_shares(l, experts);
}

int placement_without(struct placement **p, const struct placement *whole, const struct ranks *members,
	struct ds_err *err)
{
	struct placement *n;
	uint32_t *work = NULL, *size;
	size_t total;
	int rc = placement_new(&n, whole->layers, whole->experts, whole->world, err);

	*p = NULL;
	if (rc)
		return rc;
	if (ranks_next(members, 0) >= whole->world) {
		rc = err_set(err, DS_BUG, "a placement of experts on no rank of %zu", whole->world);
		goto out;
	}
	work = mem_calloc(whole->experts + whole->world, sizeof(*work));
	if (!work) {
		rc = nomem(whole->experts, err);
		goto out;
	}
	size = work + whole->experts;
	for (size_t i = 0; i < whole->layers; i++) {
		const struct placement_layer *from = &whole->layer[i];

		total = rehome(from, whole->experts, whole->world, members, work, size);
		if (!layer_new(&n->layer[i], total, whole->experts, whole->world)) {
			rc = nomem(total, err);
			goto out;
		}
		settle_layer(&n->layer[i], from, whole->experts, whole->world, members, work, size);
	}
out:
	free(work);
	return hand_over(p, n, rc);
}

/* ---- choosing ---- */

/* A point of [0, 1): the bits of `start` in reverse (van der Corput), so that any run of ranks is spread evenly. */
static double spread(size_t start)
{
	double point = 0.0;

	for (double step = 0.5; start; start >>= 1, step /= 2)
		point += start & 1 ? step : 0.0;
	return point;
}

/* The entry in l->copy in whose share `point` lies, the shares of entries from..to being laid end to end. */
static size_t copy_at(const struct placement_layer *l, size_t from, size_t to, double point)
{
	for (size_t i = from; i + 1 < to; i++) {
		point -= (double)l->weight[l->copy[i]];
		if (point < 0.0)
			return i;
	}
	return to - 1;
}

/*
 * The entry in l->copy that has the next token of the expert with entries from..to, the first of whose tokens entry
 * `first` has.  A copy's k-th token is due by token k / share; its turn comes when without it the copy would fall
 * behind its share.  Of those whose turn has come the one that is due first: so all stay within one token of their
 * shares at every moment (the windows of Baruah, Cohen, Plaxton, Varvel, 1996), whichever copy had the first.
 */
static size_t next_copy(const struct placement_layer *l, size_t from, size_t to, const uint32_t *counts, size_t first)
{
	double tokens = 1.0, sum = 0.0, soonest = INFINITY;
	size_t best = first;

	for (size_t i = from; i < to; i++) {
		tokens += counts[l->copy[i]];
		sum += (double)l->weight[l->copy[i]];
	}
	if (tokens < 2.0)
		return first;
	for (size_t n = from, i = first; n < to; n++, i = i + 1 < to ? i + 1 : from) {
		double count = counts[l->copy[i]], share = (double)l->weight[l->copy[i]] / sum;

		if (count < share * tokens && (count + 1.0) / share < soonest) {
			soonest = (count + 1.0) / share;
			best = i;
		}
	}
	return best;
}

void placement_choose(const struct placement_layer *l, size_t start, const uint32_t *ids, size_t n, uint32_t *chosen,
	uint32_t *counts)
{
	double point = spread(start);

	memset(counts, 0, l->slots * sizeof(*counts));
	for (size_t i = 0; i < n; i++) {
		size_t from, to;

		chosen[i] = EP_NONE;
		if (ids[i] == EP_NONE)
			continue;
		from = l->copies[ids[i]];
		to = l->copies[ids[i] + 1];
		if (to - from > 1)
			from = next_copy(l, from, to, counts, copy_at(l, from, to, point));
		chosen[i] = l->copy[from];
		counts[chosen[i]]++;
	}
}
