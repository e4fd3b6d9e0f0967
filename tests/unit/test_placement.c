/* Where experts lie, what is left of that without some ranks, and which copy of an expert a token goes to. */
#include <math.h>
#include <time.h>

#include "base/mem.h"
#include "base/random.h"
#include "ep/placement.h"
#include "tests/unit/tap.h"

static struct ds_err err;

static uint32_t slots_of(const struct placement_layer *l, size_t r)
{
	return l->first[r + 1] - l->first[r];
}

/* All that a placement promises about itself; NULL: it keeps it, else what is wrong. */
static const char *broken_layer(const struct placement *p, const struct placement_layer *l)
{
	if (l->first[0] || l->first[p->world] != l->slots || l->copies[0] || l->copies[p->experts] != l->slots)
		return "the slots are not all of some rank, or the copies of some expert";
	for (size_t r = 0; r < p->world; r++)
		for (size_t s = l->first[r]; s < l->first[r + 1]; s++)
			if (l->rank[s] != r || l->logical[s] >= p->experts)
				return "a slot has another rank, or no expert";
	for (size_t e = 0; e < p->experts; e++) {
		double sum = 0.0;

		if (l->copies[e] >= l->copies[e + 1])
			return "an expert has no copy";
		for (size_t i = l->copies[e]; i < l->copies[e + 1]; i++) {
			if (l->logical[l->copy[i]] != e || (i > l->copies[e] && l->copy[i] <= l->copy[i - 1]))
				return "copies are of another expert, or not in order";
			if (!(l->weight[l->copy[i]] > 0.0f))
				return "a share is not above 0";
			sum += (double)l->weight[l->copy[i]];
		}
		if (fabs(sum - 1.0) > 1e-5)
			return "shares do not add up to 1";
	}
	return NULL;
}

static const char *broken(const struct placement *p)
{
	const char *why = NULL;

	for (size_t i = 0; !why && i < p->layers; i++)
		why = broken_layer(p, &p->layer[i]);
	return why;
}

/* Ranks' slots differ by at most this. */
static uint32_t uneven(const struct placement *p, const struct placement_layer *l, const struct ranks *among)
{
	uint32_t least = UINT32_MAX, most = 0;

	for (size_t r = 0; r < p->world; r++) {
		if (!ranks_has(among, r))
			continue;
		least = slots_of(l, r) < least ? slots_of(l, r) : least;
		most = slots_of(l, r) > most ? slots_of(l, r) : most;
	}
	return most - least;
}

/* An expert with no more copies than there are ranks has two on one rank. */
static bool doubled(const struct placement *p, const struct placement_layer *l)
{
	for (size_t e = 0; e < p->experts; e++)
		for (size_t i = l->copies[e] + 1; i < l->copies[e + 1]; i++)
			if (l->rank[l->copy[i]] == l->rank[l->copy[i - 1]] &&
			    l->copies[e + 1] - l->copies[e] <= p->world)
				return true;
	return false;
}

static bool same(const struct placement *a, const struct placement *b)
{
	if (a->layers != b->layers || a->experts != b->experts || a->world != b->world)
		return false;
	for (size_t i = 0; i < a->layers; i++) {
		const struct placement_layer *x = &a->layer[i], *y = &b->layer[i];

		if (x->slots != y->slots || memcmp(x->logical, y->logical, x->slots * 4) ||
		    memcmp(x->first, y->first, (a->world + 1) * 4) || memcmp(x->weight, y->weight, x->slots * 4))
			return false;
	}
	return true;
}

static void defaults(void)
{
	static const size_t worlds[] = { 1, 2, 3, 5, 6, 7, 8, 12, 24, 32, 72, 96, 144, 160, 256 };
	static const size_t extra[] = { 0, 1, 8, 32, 255, 256, 300, 1000 };
	static const size_t experts[] = { 1, 8, 64, 72, 160, 256, 384 };
	size_t tried = 0, refused = 0;
	bool good = true;

	for (size_t i = 0; i < ARRAY_LEN(worlds) * ARRAY_LEN(extra) * ARRAY_LEN(experts); i++) {
		size_t w = worlds[i % ARRAY_LEN(worlds)], x = extra[i / ARRAY_LEN(worlds) % ARRAY_LEN(extra)];
		size_t e = experts[i / ARRAY_LEN(worlds) / ARRAY_LEN(extra)];
		struct ranks all = ranks_first(w);
		struct placement *p;
		const char *why;
		int rc = placement_default(&p, 2, e, x, w, &err);

		if (e + x < w) {
			good &= rc == DS_CONFIG && !p;
			refused++;
			continue;
		}
		why = rc ? err.text : broken(p);
		if (!why && (uneven(p, &p->layer[1], &all) > 1 || p->layer[1].slots != e + x))
			why = "ranks differ by more than one";
		if (!why && doubled(p, &p->layer[0]))
			why = "two copies of an expert on one rank that need not be there";
		if (why) {
			tap_diag("%zu + %zu experts over %zu ranks: %s", e, x, w, why);
			good = false;
		}
		placement_free(p);
		tried++;
	}
	tap_ok(good && tried > 500 && refused > 50, "default placements of many shapes are whole, even, spread: %zu; "
		"too few experts for the ranks is refused: %zu", tried, refused);
}

static void published(void)
{
	static const struct { size_t world; uint32_t slots; } v3[] = { { 32, 9 }, { 144, 2 } };

	for (size_t i = 0; i < ARRAY_LEN(v3); i++) {
		struct placement *p;
		bool good = placement_default(&p, 58, 256, 32, v3[i].world, &err) == 0 && p->layers == 58;

		for (size_t r = 0; good && r < v3[i].world; r++)
			good = slots_of(&p->layer[0], r) == v3[i].slots && slots_of(&p->layer[57], r) == v3[i].slots;
		tap_ok(good, "256 + 32 experts over %zu ranks: %u each", v3[i].world, v3[i].slots);
		placement_free(p);
	}
}

static void senseless(void)
{
	struct placement *p;

	tap_ok(placement_default(&p, 1, 8, 0, 0, &err) == DS_CONFIG &&
		placement_default(&p, 1, 0, 8, 2, &err) == DS_CONFIG &&
		placement_default(&p, 1, 8, 0, EP_MAX_WORLD + 1, &err) == DS_CONFIG &&
		placement_default(&p, 1, 8, SIZE_MAX - 3, 2, &err) == DS_CONFIG &&
		placement_default(&p, 1, 8, UINT32_MAX, 2, &err) == DS_CONFIG && !p,
		"no rank, no expert, too many of either: refused");
	tap_ok(!placement_default(&p, 0, 8, 0, 2, &err) && p->layers == 0,
		"a model without MoE layers has a placement");
	placement_free(p);
	placement_free(NULL);
}

/* ---- maps ---- */

#define N EP_NONE

static void maps(void)
{
	/* 2 layers, 3 ranks with 2 slots, 4 experts */
	static const uint32_t map[] = { 3, 0, 1, N, 2, 0,  N, N, 0, 1, 3, 2 };
	static const float weight[] = { 5, 3, 1e-30f, NAN, 1e30f, 1,  -1, 0, 1, 1, 1, 1 };
	struct placement *p;
	const struct placement_layer *l;

	if (placement_from_map(&p, 2, 4, 3, 2, map, weight, &err))
		tap_bail("%s", err.text);
	l = &p->layer[0];
	tap_ok(!broken(p), "a map with empty slots is whole");
	tap_ok(l->slots == 5 && slots_of(l, 0) == 2 && slots_of(l, 1) == 1 && slots_of(l, 2) == 2 &&
		l->logical[0] == 3 && l->logical[2] == 1 && slots_of(&p->layer[1], 0) == 0,
		"experts are where the map says, in its order; a rank may have none");
	tap_ok(l->copies[1] == 2 && l->copy[0] == 1 && l->copy[1] == 4 && l->weight[1] == 0.75f &&
		l->weight[4] == 0.25f && l->weight[2] == 1.0f,
		"weights become shares; those of empty slots do not matter");
	placement_free(p);
	tap_ok(!placement_from_map(&p, 2, 4, 3, 2, map, NULL, &err) && p->layer[0].weight[1] == 0.5f &&
		p->layer[0].weight[4] == 0.5f, "without weights shares are equal");
	placement_free(p);
}

static void far_apart(void)
{
	static const uint32_t map[] = { 0, 0 };
	static const float weight[] = { 1e38f, 1e-45f };
	struct placement *p;

	tap_ok(!placement_from_map(&p, 1, 1, 2, 1, map, weight, &err) && !broken(p),
		"a share that is next to nothing stays above 0");
	placement_free(p);
}

static void refused_map(const char *what, const uint32_t *map, const float *weight, size_t slots, const char *word,
	const char *other)
{
	struct placement *p;
	int rc = placement_from_map(&p, 2, 4, 3, slots, map, weight, &err);

	tap_ok(rc == DS_DATA && !p && strstr(err.text, word) && strstr(err.text, other), "%s is refused: %s", what,
		err.text);
	placement_free(p);
}

static void bad_maps(void)
{
	uint32_t map[] = { 3, 0, 1, N, 2, 0,  N, N, 0, 1, 3, 2 };
	float weight[12];

	for (size_t i = 0; i < 12; i++)
		weight[i] = 1.0f;
	map[4] = 3;
	refused_map("an expert without a copy", map, NULL, 2, "layer 0", "expert 2");
	map[4] = 2;
	map[9] = 4;
	refused_map("an expert that is not there", map, NULL, 2, "layer 1", "expert 4");
	map[9] = 1;
	weight[9] = INFINITY;
	refused_map("an infinite weight", map, weight, 2, "layer 1", "expert 1");
	weight[9] = NAN;
	refused_map("a weight that is none", map, weight, 2, "layer 1", "expert 1");
	weight[9] = 0.0f;
	refused_map("weight 0", map, weight, 2, "layer 1", "expert 1");
	weight[9] = 1.0f;
	weight[0] = -2.0f;
	refused_map("a weight below 0", map, weight, 2, "layer 0", "expert 3");
	refused_map("no room", map, NULL, 1, "1 slots", "4 experts");
	refused_map("an overflow of sizes", map, NULL, SIZE_MAX / 2, "slots", "4 experts");
}

/* ---- without some ranks ---- */

/* Copies of members are all there, in order, with shares as they were to each other; what is new had no copy left. */
static const char *moved(const struct placement *a, const struct placement *b, size_t layer, const struct ranks *m)
{
	const struct placement_layer *x = &a->layer[layer], *y = &b->layer[layer];

	for (size_t r = 0; r < a->world; r++) {
		size_t n = slots_of(x, r);

		if (!ranks_has(m, r)) {
			if (slots_of(y, r))
				return "a rank that is not there has experts";
			continue;
		}
		if (slots_of(y, r) < n || memcmp(y->logical + y->first[r], x->logical + x->first[r], n * 4))
			return "a copy of a member has moved";
		for (size_t s = y->first[r] + n; s < y->first[r + 1]; s++)
			if (y->copies[y->logical[s] + 1] - y->copies[y->logical[s]] != 1)
				return "an expert that had a copy left has a new one";
	}
	for (size_t e = 0; e < a->experts; e++) {
		const uint32_t *c = y->copy + y->copies[e];

		for (size_t i = 1, n = y->copies[e + 1] - y->copies[e]; i < n; i++) {
			size_t s = c[i] - y->first[y->rank[c[i]]] + x->first[y->rank[c[i]]];
			size_t z = c[0] - y->first[y->rank[c[0]]] + x->first[y->rank[c[0]]];
			double was = (double)x->weight[s] / (double)x->weight[z];

			if (fabs((double)y->weight[c[i]] / (double)y->weight[c[0]] / was - 1.0) > 1e-5)
				return "shares are not in their old proportion";
		}
	}
	return NULL;
}

/* Who has got something has no more than any other, but for one and for what it had before. */
static bool overloaded(const struct placement *a, const struct placement *b, size_t layer, const struct ranks *m)
{
	const struct placement_layer *x = &a->layer[layer], *y = &b->layer[layer];

	for (size_t r = 0; r < a->world; r++)
		for (size_t s = 0; s < a->world; s++)
			if (ranks_has(m, r) && ranks_has(m, s) && slots_of(y, r) > slots_of(x, r) &&
			    slots_of(y, r) > slots_of(y, s) + 1)
				return true;
	return false;
}

/* Every layer another map, with random weights. */
static struct placement *random_placement(uint64_t seed, size_t layers, size_t experts, size_t world, size_t slots)
{
	uint32_t *map = mem_calloc(layers * world * slots, 4);
	float *weight = mem_calloc(layers * world * slots, 4);
	struct placement *p;
	uint64_t at = 0;

	if (!map || !weight)
		tap_bail("no memory");
	for (size_t i = 0; i < layers * world * slots; i++) {
		uint64_t x = random_bits(seed, at++);

		map[i] = x % 5 ? (uint32_t)(x / 5 % experts) : EP_NONE;
		weight[i] = (float)exp(8.0 * random_unit(seed, at++));
	}
	for (size_t l = 0; l < layers; l++) /* each at least once */
		for (size_t e = 0; e < experts; e++)
			map[l * world * slots + (e + seed + l) % (world * slots)] = (uint32_t)e;
	if (placement_from_map(&p, layers, experts, world, slots, map, weight, &err))
		tap_bail("%s", err.text);
	free(map);
	free(weight);
	return p;
}

static const char *lose(const struct placement *whole, uint64_t seed)
{
	struct ranks m = { { 0 } };
	struct placement *p, *again;
	const char *why;

	for (size_t r = 0; r < whole->world; r++)
		if (random_bits(seed, r) % 4)
			ranks_add(&m, r);
	ranks_add(&m, random_bits(seed, 9999) % whole->world);
	ranks_add(&m, whole->world + 3); /* means nothing */
	if (placement_without(&p, whole, &m, &err) || placement_without(&again, whole, &m, &err))
		return err.text;
	why = same(p, again) ? broken(p) : "twice the same is not the same";
	for (size_t i = 0; !why && i < p->layers; i++) {
		why = moved(whole, p, i, &m);
		if (!why && overloaded(whole, p, i, &m))
			why = "one has more than it must";
	}
	placement_free(p);
	placement_free(again);
	return why;
}

static void losses(void)
{
	const char *why = NULL;
	size_t n = 0;

	for (uint64_t seed = 0; !why && seed < 150; seed++) {
		size_t world = 1 + random_bits(seed, 1) % 24, experts = 1 + random_bits(seed, 2) % 80;
		size_t slots = (experts + world - 1) / world + 1 + random_bits(seed, 3) % 3;
		struct placement *p;

		p = random_placement(seed, 3, experts, world, slots);
		for (uint64_t k = 0; !why && k < 8; k++, n++)
			why = lose(p, seed * 100 + k);
		placement_free(p);
	}
	tap_ok(!why && n == 1200,
		"without some ranks, %zu times: members' copies stay, the lost are spread, shares kept", n);
	if (why)
		tap_diag("%s", why);
}

static void last_one(void)
{
	struct ranks one = { { 0 } }, none = { { 0 } }, all = ranks_first(8), most = ranks_first(7);
	struct placement *p, *q;

	placement_default(&p, 2, 64, 8, 8, &err);
	ranks_add(&one, 5);
	tap_ok(!placement_without(&q, p, &one, &err) && !broken(q) && slots_of(&q->layer[1], 5) == 64,
		"the last survivor has all experts, once");
	placement_free(q);
	tap_ok(!placement_without(&q, p, &all, &err) && same(p, q), "without nobody all is as before");
	placement_free(q);
	tap_ok(!placement_without(&q, p, &most, &err) && !broken(q) && uneven(q, &q->layer[0], &most) <= 1 &&
		slots_of(&q->layer[1], 0) == 10 && q->layer[1].logical[9] == 63,
		"what one of eight leaves is spread evenly, to the lowest first");
	placement_free(q);
	tap_ok(placement_without(&q, p, &none, &err) == DS_BUG && !q, "nobody left is an error");
	placement_free(p);
}

/* ---- choosing ---- */

enum { TOKENS = 4096, TOP_K = 8, CHOICES = TOKENS * TOP_K };

struct batch { uint32_t ids[CHOICES], chosen[CHOICES], again[CHOICES], counts[4096]; };

/* Far from even: most choices are of few experts; some are of none. */
static void make_batch(struct batch *b, uint64_t seed, size_t experts)
{
	for (size_t i = 0; i < CHOICES; i++) {
		double u = random_unit(seed, 2 * i);

		b->ids[i] = random_bits(seed, 2 * i + 1) % 50 ? (uint32_t)(u * u * u * (double)experts) : EP_NONE;
	}
}

/* At every prefix each copy has its share of its expert's tokens, but for less than one. */
static const char *off_share(const struct placement_layer *l, size_t experts, struct batch *b, double *most)
{
	uint32_t *of = mem_calloc(experts, 4);

	memset(b->counts, 0, sizeof(b->counts));
	for (size_t i = 0; i < CHOICES; i++) {
		uint32_t e = b->ids[i], c = b->chosen[i];
		double sum = 0.0;

		if ((e == EP_NONE) != (c == EP_NONE))
			return "a choice of no expert has one, or the other way round";
		if (e == EP_NONE)
			continue;
		if (c >= l->slots || l->logical[c] != e)
			return "the copy is of another expert";
		b->counts[c]++;
		of[e]++;
		for (size_t k = l->copies[e]; k < l->copies[e + 1]; k++)
			sum += (double)l->weight[l->copy[k]];
		for (size_t k = l->copies[e]; k < l->copies[e + 1]; k++) {
			double off = b->counts[l->copy[k]] - of[e] * (double)l->weight[l->copy[k]] / sum;

			*most = fmax(*most, fabs(off));
		}
	}
	free(of);
	return *most < 1.0 + 1e-6 ? NULL : "a copy is a token or more off its share";
}

static void shares(struct batch *b)
{
	const char *why = NULL;
	double most = 0.0;

	for (uint64_t seed = 0; !why && seed < 12; seed++) {
		struct placement *p = random_placement(seed, 1, 5 + 20 * seed, 17, 2 + seed * 2);

		make_batch(b, seed, p->experts);
		placement_choose(&p->layer[0], seed * 3, b->ids, CHOICES, b->chosen, b->counts);
		why = off_share(&p->layer[0], p->experts, b, &most);
		placement_choose(&p->layer[0], seed * 3, b->ids, CHOICES, b->again, b->counts);
		if (!why && memcmp(b->chosen, b->again, sizeof(b->chosen)))
			why = "twice the same is not the same";
		placement_choose(&p->layer[0], seed * 3, b->ids, 77, b->again, b->counts);
		if (!why && memcmp(b->chosen, b->again, 77 * sizeof(b->chosen[0])))
			why = "the beginning of a batch depends on its end";
		placement_free(p);
	}
	tap_ok(!why, "copies with weights up to 3000 apart have their shares at every moment but for a token");
	tap_diag("%s; at most %.6f tokens off", why ? why : "all well", most);
}

/* Copies 1000 apart: the light one has its first token from a rank that begins with it, else in its time. */
static void thousand(struct batch *b)
{
	static const uint32_t map[] = { 0, 0 };
	static const float weight[] = { 1000, 1 };
	struct placement *p;
	size_t first = 0, light = 0;

	placement_from_map(&p, 1, 1, 2, 1, map, weight, &err);
	memset(b->ids, 0, sizeof(b->ids));
	for (size_t start = 0; start < 1024; start++) {
		placement_choose(&p->layer[0], start, b->ids, 1, b->chosen, b->counts);
		first += b->chosen[0];
	}
	placement_choose(&p->layer[0], 0, b->ids, 3003, b->chosen, b->counts);
	for (size_t i = 0; i < 3003; i++)
		light += b->chosen[i];
	tap_ok(first >= 1 && first <= 2 && light == 3,
		"of 1000 to 1 the light copy is not forgotten, nor loved: %zu, %zu",
		first, light);
	placement_free(p);
}

static void starts(struct batch *b)
{
	static const uint32_t map[] = { 0, 0, 0, 1 };
	static const float weight[] = { 2, 1, 1, 1 };
	uint32_t of[4] = { 0 }, pairs = 0;
	struct placement *p;

	placement_from_map(&p, 1, 2, 4, 1, map, weight, &err);
	memset(b->ids, 0, sizeof(b->ids));
	for (size_t r = 0; r < 8; r++) {
		placement_choose(&p->layer[0], r, b->ids, 2, b->chosen, b->counts);
		of[b->chosen[0]]++;
		pairs += b->chosen[0] == b->chosen[1];
	}
	tap_ok(of[0] == 4 && of[1] == 2 && of[2] == 2, "eight ranks with a token each keep the proportion: %u, %u, %u",
		of[0], of[1], of[2]);
	tap_ok(!pairs, "an expert twice in a token's choices is two tokens, which copies share");
	b->ids[0] = b->ids[2] = EP_NONE;
	b->ids[1] = 1;
	placement_choose(&p->layer[0], 1, b->ids, 3, b->chosen, b->counts);
	tap_ok(b->chosen[0] == EP_NONE && b->chosen[1] == 3 && b->chosen[2] == EP_NONE, "no expert stays no expert");
	placement_choose(&p->layer[0], 1, b->ids, 0, b->chosen, b->counts);
	placement_free(p);
}

static void hot(struct batch *b)
{
	struct placement *p;
	uint32_t least = UINT32_MAX, most = 0;

	placement_default(&p, 1, 4, 28, 32, &err); /* eight copies each */
	memset(b->ids, 0, sizeof(b->ids));
	placement_choose(&p->layer[0], 7, b->ids, 4001, b->chosen, b->counts);
	for (size_t i = 0; i < 8; i++) {
		uint32_t n = b->counts[p->layer[0].copy[i]];

		least = n < least ? n : least;
		most = n > most ? n : most;
	}
	tap_ok(least == 500 && most == 501, "all tokens to one expert: its eight copies have %u to %u", least, most);
	placement_free(p);
}

static void speed(struct batch *b)
{
	struct placement *p;
	struct timespec t0, t1;
	double s;

	placement_default(&p, 1, 256, 32, 32, &err);
	make_batch(b, 3, 256);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
	for (size_t i = 0; i < 10; i++)
		placement_choose(&p->layer[0], i, b->ids, CHOICES, b->chosen, b->counts);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
	s = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
	tap_diag("%d tokens with %d choices: %.0f us", TOKENS, TOP_K, s * 1e5);
	placement_free(p);
}

int main(void)
{
	struct batch *b = mem_calloc(1, sizeof(*b));

	if (!b)
		tap_bail("no memory");
	published();
	defaults();
	senseless();
	maps();
	far_apart();
	bad_maps();
	losses();
	last_one();
	shares(b);
	thousand(b);
	starts(b);
	hot(b);
	speed(b);
	free(b);
	return tap_done();
}
