/* Counts of experts and peers: what all ranks say together is what happened. */
#include "base/mem.h"
#include "base/random.h"
#include "ep/load.h"
#include "ep/placement.h"
#include "tests/unit/tap.h"

enum { WORLD = 5, LAYERS = 3, EXPERTS = 24, TOP_K = 4, TOKENS = 50, REDUNDANT = 7 };

static struct ds_err err;

struct bench { struct load *load[WORLD]; struct placement *p; uint32_t ids[TOKENS * TOP_K], chosen[TOKENS * TOP_K];
	uint32_t counts[EXPERTS + REDUNDANT]; };

static void begin(struct bench *b)
{
	if (placement_default(&b->p, LAYERS, EXPERTS, REDUNDANT, WORLD, &err))
		tap_bail("%s", err.text);
	for (size_t r = 0; r < WORLD; r++) {
		struct load_config c = { r, WORLD, 3, LAYERS, EXPERTS };

		if (load_new(&b->load[r], &c, &err))
			tap_bail("%s", err.text);
	}
}

static void end(struct bench *b)
{
	for (size_t r = 0; r < WORLD; r++)
		load_free(b->load[r]);
	placement_free(b->p);
}

/* The tokens of one rank in one layer are counted there, and where they are computed.  none: so many choices of no
 * expert. */
static void count(struct bench *b, size_t r, size_t layer, size_t tokens, uint64_t seed, size_t *none)
{
	const struct placement_layer *l = &b->p->layer[layer];

	for (size_t i = 0; i < tokens * TOP_K; i++) {
		uint64_t x = random_bits(seed, i);

		b->ids[i] = x % 11 ? (uint32_t)(x / 11 % EXPERTS) : EP_NONE;
		*none += b->ids[i] == EP_NONE;
	}
	load_count(b->load[r], layer, b->ids, tokens * TOP_K);
	placement_choose(l, r, b->ids, tokens * TOP_K, b->chosen, b->counts);
	for (size_t s = 0; s < l->slots; s++)
		if (b->counts[s])
			load_received(b->load[l->rank[s]], layer, l->logical[s], b->counts[s]);
}

/* One step of all ranks, of different numbers of tokens, rank 1 without any. */
static size_t step(struct bench *b, uint64_t seed, size_t *none)
{
	size_t tokens = 0;

	for (size_t r = 0; r < WORLD; r++) {
		size_t n = r == 1 ? 0 : 1 + random_bits(seed, r) % TOKENS;

		for (size_t layer = 0; layer < LAYERS; layer++)
			count(b, r, layer, n, seed * 100 + r * 10 + layer, none);
		tokens += n;
	}
	return tokens;
}

static void finish(struct bench *b, uint64_t seed)
{
	for (size_t r = 0; r < WORLD; r++)
		load_step(b->load[r], r == 1 ? 0 : 1 + random_bits(seed, r) % TOKENS);
}

struct sums { int64_t chosen, computed; uint64_t rows, steps; bool each; };

static struct sums take(struct bench *b)
{
	struct sums s = { .each = true };
	int64_t per[LAYERS * EXPERTS] = { 0 };

	for (size_t r = 0; r < WORLD; r++) {
		struct load_message m;

		load_take(b->load[r], 4, 9, &m);
		s.each &= m.rank == r && m.world == WORLD && m.epoch == 4 && m.plan == 9 && m.layer == 3 &&
			m.layers == LAYERS && m.experts == EXPERTS && m.t_ns;
		s.rows += m.rows;
		s.steps += m.steps;
		for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
			s.chosen += m.counts[i];
			s.computed += m.received[i];
			per[i] += m.counts[i] - m.received[i];
		}
	}
	for (size_t i = 0; i < LAYERS * EXPERTS; i++)
		s.each &= !per[i];
	return s;
}

static void sums(void)
{
	struct bench b;
	size_t tokens = 0, none = 0;
	struct sums s;

	begin(&b);
	for (uint64_t i = 0; i < 6; i++) {
		tokens += step(&b, i, &none);
		finish(&b, i);
	}
	s = take(&b);
	tap_ok(s.chosen == (int64_t)(tokens * TOP_K * LAYERS - none) && s.computed == s.chosen && none,
		"over all ranks tokens times choices are counted, and computed: %lld", (long long)s.chosen);
	tap_ok(s.each && s.rows == tokens && s.steps == 6 * WORLD,
		"for each expert of each layer; tokens and steps, too");
	s = take(&b);
	tap_ok(!s.chosen && !s.computed && !s.rows && !s.steps && s.each,
		"what was handed out is not handed out again");
	tokens = none = 0;
	tokens = step(&b, 77, &none);
	finish(&b, 77);
	s = take(&b);
	tap_is_int(s.chosen, (long long)(tokens * TOP_K * LAYERS - none), "the next interval has its own counts");
	end(&b);
}

/* Steps broken off and begun again. */
static void undone(void)
{
	struct bench b;
	size_t none = 0, again = 0, tokens;
	struct sums s;

	begin(&b);
	step(&b, 5, &none);
	for (size_t r = 0; r < WORLD; r++)
		load_undo(b.load[r]);
	tokens = step(&b, 5, &again);
	s = take(&b);
	tap_ok(!s.chosen && !s.computed && s.each, "a step that goes on is not counted yet");
	finish(&b, 5);
	s = take(&b);
	tap_ok(s.chosen == (int64_t)(tokens * TOP_K * LAYERS - again) && s.each,
		"a step that was begun again counts once");
	end(&b);
}

static void peers(void)
{
	struct bench b;
	struct transport_peer t = { .sent_bytes = 100, .received_bytes = 50, .waited_ns = 7 };
	struct load_message m;

	begin(&b);
	load_peer(b.load[0], 3, &t);
	t.sent_bytes = 150;
	load_peer(b.load[0], 3, &t);
	load_take(b.load[0], 1, 0, &m);
	tap_ok(m.peers[3].sent_bytes == 150 && m.peers[3].received_bytes == 50 && m.peers[3].waited_ns == 7 &&
		!m.peers[2].sent_bytes, "a peer's totals become what is new in them");
	t.waited_ns = 10;
	load_peer(b.load[0], 3, &t);
	load_take(b.load[0], 1, 0, &m);
	tap_ok(!m.peers[3].sent_bytes && m.peers[3].waited_ns == 3, "since the last time");
	t = (struct transport_peer){ .sent_bytes = 20, .received_bytes = 50, .waited_ns = 10 };
	load_peer(b.load[0], 3, &t);
	load_take(b.load[0], 1, 0, &m);
	tap_ok(m.peers[3].sent_bytes == 20 && !m.peers[3].received_bytes, "totals that begin anew are no huge figures");
	end(&b);
}

static void times(void)
{
	struct bench b;
	struct load_message m;

	begin(&b);
	usleep(2000);
	load_take(b.load[0], 1, 0, &m);
	tap_ok(m.interval_ns >= 2000000,
		"an interval is as long as it was: %llu ns", (unsigned long long)m.interval_ns);
	end(&b);
	load_free(NULL);
}

int main(void)
{
	sums();
	undone();
	peers();
	times();
	return tap_done();
}
