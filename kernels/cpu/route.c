/*
 * The gate: which experts a token goes to, and with what weights.  One implementation for all sets, so that a choice
 * near a tie does not depend on the set.
 */
#include <math.h>

#include "kernels/cpu/stream.h"

struct route_job {
	const struct route *r;
	const float *logits;
	size_t per, rows;
	uint32_t *ids;
	float *weights;
	struct kern_stream *s;
};

/* A thread's working memory. */
struct desk {
	float *score, *biased; /* [experts] */
	float *group;          /* [groups] */
	bool *taken;           /* [experts] */
	bool *kept;            /* [groups] */
};

static struct desk desk_of(const struct route_job *j, int worker)
{
	size_t e = j->r->experts, g = j->r->groups;
	float *f = kern_scratch(j->s, worker, (2 * e + g) * sizeof(float) + (e + g) * sizeof(bool));
	struct desk d = { f, f + e, f + 2 * e, (bool *)(f + 2 * e + g), (bool *)(f + 2 * e + g) + e };

	return d;
}

static void scores_of(const struct route *r, const float *logits, float *score)
{
	float max = -INFINITY;
	double sum = 0;

	if (r->score == SCORE_SIGMOID) {
		for (size_t e = 0; e < r->experts; e++)
			score[e] = 1.0f / (1.0f + expf(-logits[e]));
		return;
	}
	for (size_t e = 0; e < r->experts; e++)
		if (logits[e] > max)
			max = logits[e];
	for (size_t e = 0; e < r->experts; e++) {
		score[e] = expf(logits[e] - max);
		sum += score[e];
	}
	for (size_t e = 0; e < r->experts; e++)
		score[e] = (float)(score[e] / sum);
}

/* Index of the largest v[i] with !taken[i], the lowest in ties; a NaN counts as -inf.  At least one must be free. */
static size_t best_free(const float *v, const bool *taken, size_t n)
{
	size_t best = n;

	for (size_t i = 0; i < n; i++)
		if (!taken[i] && (best == n || v[i] > v[best]))
			best = i;
	return best;
}

/* How a group is ranked: by its two best together (noaux_tc), or by its best. */
static float group_score(const struct route *r, const float *v, size_t n)
{
	float first = -INFINITY, second = -INFINITY;

	for (size_t i = 0; i < n; i++) {
		if (v[i] > first) {
			second = first;
			first = v[i];
		} else if (v[i] > second) {
			second = v[i];
		}
	}
	return r->method == TOPK_NOAUX_TC && n > 1 ? first + second : first;
}

/* Sets the biased scores of all groups but the best topk_groups to -inf. */
static void mask_groups(const struct route *r, const struct desk *d)
{
	size_t size = r->experts / r->groups;

	for (size_t g = 0; g < r->groups; g++) {
		d->group[g] = group_score(r, d->biased + g * size, size);
		d->kept[g] = false;
	}
	for (size_t k = 0; k < r->topk_groups && k < r->groups; k++)
		d->kept[best_free(d->group, d->kept, r->groups)] = true;
	for (size_t g = 0; g < r->groups; g++)
		for (size_t e = g * size; !d->kept[g] && e < (g + 1) * size; e++)
			d->biased[e] = -INFINITY;
}

static void route_row(const struct route *r, const struct desk *d, const float *logits, uint32_t *ids, float *weights)
{
	float sum = 0;

	scores_of(r, logits, d->score);
	for (size_t e = 0; e < r->experts; e++) {
		d->taken[e] = false;
		d->biased[e] = r->bias ? d->score[e] + r->bias[e] : d->score[e];
		if (isnan(d->biased[e])) /* so that it neither wins nor shields a better one */
			d->biased[e] = -INFINITY;
	}
	if (r->method != TOPK_GREEDY && r->groups > 1)
		mask_groups(r, d);
	for (size_t k = 0; k < r->top_k; k++) {
		size_t e = best_free(d->biased, d->taken, r->experts);

		d->taken[e] = true;
		ids[k] = (uint32_t)e;
		weights[k] = d->score[e];
		sum += d->score[e];
	}
	for (size_t k = 0; k < r->top_k; k++)
		weights[k] = (r->normalise ? weights[k] / sum : weights[k]) * r->scale;
}

static void route_rows(void *arg, size_t item, int worker)
{
	const struct route_job *j = arg;
	const struct route *r = j->r;
	const struct desk d = desk_of(j, worker);

	for (size_t i = item * j->per; i < j->rows && i < (item + 1) * j->per; i++)
		route_row(r, &d, j->logits + i * r->experts, j->ids + i * r->top_k, j->weights + i * r->top_k);
}

void kern_route(struct kern_stream *s, const struct route *r, const float *logits, size_t rows, uint32_t *ids,
	float *weights)
{
	struct route_job j = { r, logits, kern_rows_per_item(s, rows, r->experts * 16), rows, ids, weights, s };

	pool_run(&s->pool, (rows + j.per - 1) / j.per, route_rows, &j);
}
