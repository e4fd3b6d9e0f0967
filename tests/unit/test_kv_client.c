/* A stage's side of a store of KV blocks: what arrives is right, late bytes go nowhere, what is written waits. */
#include <math.h>

#include "serve/prompt.h"
#include "tests/unit/kv_rig.h"

static void test_fetch(size_t tokens)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;
	size_t whole = COUNT / tokens * (tokens / KV_BLOCK);

	open_rig(&r, tokens, BLOCK_EXACT, 64 * BLOCK);
	a = ask(&r);
	tap_ok(a && kv_ask_state(a) == KV_ASK_OVER && kv_ask_found(a) == 0, "blocks of %zu: an empty store has nothing",
		tokens);
	kv_ask_end(a, false);
	put_all(&r, COUNT / KV_BLOCK);
	reopen(&r, tokens);
	a = ask(&r);
	tap_ok(a && kv_ask_state(a) == KV_ASK_FOUND && kv_ask_found(a) == whole, "what was put is found");
	kv_seq_reserve(&s, r.pool, COUNT);
	memset(s.pages[0], 7, BLOCK);
	tap_ok(kv_ask_fetch(a, &s, 1, decoded), "it can be fetched, from its second page on");
	until(&r, a, KV_ASK_FETCHES);
	tap_ok(kv_ask_arrived(a, 1, decoded) == whole && wrong_pages(&s, 1, whole) == 0, "it arrives as it was put");
	tap_ok(*(uint8_t *)s.pages[0] == 7, "the page that was there is not written");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* The thread is between the beginning and the end of a block when the stage gives up and gives everything back. */
static void test_late(void)
{
	struct kv_seq s = { 0 }, others = { 0 };
	struct kv_ask *a;
	struct rig r;
	void *third;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	third = s.pages[2];
	gate(true);
	kv_ask_fetch(a, &s, 2, decoded);
	until_waiting();
	kv_ask_end(a, true);
	kv_seq_clear(&s, r.pool);
	tap_is_int((long long)r.pool->used, 1,
		"of what was given up the block that is being written stays, and no other");
	tap_ok(kv_client_holds(r.c), "and that is known");
	kv_seq_reserve(&others, r.pool, 7 * KV_BLOCK);
	for (size_t i = 0; i < others.count; i++) {
		memset(others.pages[i], 0x55, BLOCK);
		if (others.pages[i] == third)
			third = NULL;
	}
	tap_ok(others.count == 7 && third, "nobody else gets it");
	gate(false);
	for (int i = 0; i < 100 && kv_client_holds(r.c); i++) {
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 100);
		kv_client_rung(r.c);
	}
	tap_is_int((long long)r.pool->used, 7, "when it is written it is free");
	third = NULL;
	for (size_t i = 0; i < others.count; i++)
		for (size_t k = 0; k < BLOCK; k++)
			if (((uint8_t *)others.pages[i])[k] != 0x55)
				third = others.pages[i];
	tap_ok(!third, "nobody's memory was written to");
	kv_seq_clear(&others, r.pool);
	close_rig(&r);
}

/* A prompt whose time to wait for the store is over in the middle of a block goes on in other memory. */
static void test_prompt(void)
{
	struct kv_seq s = { 0 };
	struct prompt p = { .ids = ids, .count = COUNT, .kv = &s };
	struct work w = { .store_timeout_ns = 50000000 };
	enum prompt_store is = PROMPT_WAITS;
	struct ds_err err;
	struct rig r;
	void *first;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	w.store = r.c;
	w.pool = r.pool;
	prompt_ask(&w, &p);
	for (int i = 0; i < 100 && (is = prompt_store(&w, &p, false)) == PROMPT_WAITS; i++)
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 100);
	tap_ok(is == PROMPT_FETCH && prompt_fetch_blocks(&p) == 5, "a prompt in the store can be fetched");
	prompt_begin(&w, &p, &err);
	kv_seq_reserve(&s, r.pool, COUNT);
	first = s.pages[0];
	gate(true);
	prompt_fetch(&w, &p);
	until_waiting();
	tap_ok(prompt_store(&w, &p, false) == PROMPT_WAITS, "it waits, as long as it could not be computed");
	for (int i = 0; i < 100 && (is = prompt_store(&w, &p, true)) == PROMPT_WAITS; i++) {
		poll(&(struct pollfd){ kv_client_bell(r.c), POLLIN, 0 }, 1, 1000);
		kv_client_rung(r.c);
	}
	tap_ok(is == PROMPT_READY && s.length == 0 && p.hit == 0, "and then for --kv-timeout, woken by the bell");
	kv_seq_reserve(&s, r.pool, COUNT);
	for (size_t i = 0; i < s.count; i++)
		if (s.pages[i] == first)
			first = NULL;
	tap_ok(first && s.count == 6, "it is computed in blocks to which nobody else writes");
	gate(false);
	prompt_end(&p);
	kv_seq_clear(&s, r.pool);
	kv_client_flush(r.c, time_mono_ns());
	close_rig(&r);
}

static void test_forged(bool finite)
{
	struct kv_seq s = { 0 };
	struct block_layout l = { .model = "m", .arith = "a", .kernels = "k", .type = DT_F32, .layers = LAYERS,
		.latent = LATENT, .rope = ROPE, .tokens = 64 };
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct meta_builder *b = meta_new();
	float *rows = mem_aligned(BLOCK);
	struct iovec iov = { rows, BLOCK };
	struct store_put p = { .meta = b, .iov = &iov, .iovs = 1 };
	struct block_id id;
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	kv_keys(r.c, ids, COUNT, decoded, keys);
	reopen(&r, 64);
	id = (struct block_id){ .parent = keys[1], .ids = ids + 128, .first = 128, .decoded = 64 };
	p.key = keys[2];
	ids[140] += finite; /* another token under the right key */
	rows[99] = finite ? 1.0f : NAN;
	block_meta_put(b, &l, &id);
	ids[140] -= finite;
	hold(&p);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	kv_ask_fetch(a, &s, 0, decoded);
	until(&r, a, KV_ASK_FETCHES);
	tap_is_int((long long)kv_ask_arrived(a, 0, decoded), 2,
		finite ? "a block of other tokens under the right key ends what is taken" : "so does one with a NaN");
	tap_ok(count_of(&st.dels) == 1, "and the store is to forget it");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
	meta_free(b);
	free(rows);
}

static void test_ending(void)
{
	struct kv_seq s = { 0 };
	struct kv_ask *a;
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	put_all(&r, 5);
	reopen(&r, 64);
	a = ask(&r);
	kv_seq_reserve(&s, r.pool, COUNT);
	gate(true);
	alarm(20);
	if (!a || !kv_ask_fetch(a, &s, 0, decoded))
		tap_bail("nothing is fetched");
	until_waiting();
	kv_ask_end(a, true);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
	alarm(0);
	tap_ok(true, "an end does not wait for the call of the store that goes on");
}

static void test_writes(void)
{
	struct kv_ask *a;
	struct store_key keys[COUNT / KV_BLOCK + 1];
	struct kv_seq s = { 0 };
	struct rig r;

	open_rig(&r, 64, BLOCK_EXACT, 2 * BLOCK);
	gate(true);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	memset(s.pages[0], 0, BLOCK); /* its copies are what is written */
	memset(s.pages[1], 0, BLOCK);
	gate(false);
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_is_int((long long)st.n, 2, "what is over the limit on memory is not written");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	((float *)s.pages[3])[7] = INFINITY;
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	kv_client_flush(r.c, time_mono_ns() + (int64_t)10000000000);
	tap_ok(st.n == 4 && count_of(&st.puts) == 4, "rows that are no numbers are not written, nor anything twice");
	kv_seq_clear(&s, r.pool);
	close_rig(&r);

	open_rig(&r, 64, BLOCK_EXACT, 64 * BLOCK);
	st.full = true;
	kv_seq_reserve(&s, r.pool, COUNT);
	compute(&s, 5);
	kv_put_prompt(r.c, NULL, &s, ids, decoded, keys, kv_keys(r.c, ids, COUNT, decoded, keys));
	for (int i = 0; i < 500 && count_of(&st.puts) < 5; i++)
		usleep(10000);
	a = ask(&r);
	tap_ok(count_of(&st.puts) == 5 && a && st.n == 0, "a store that cannot write is offered blocks, and asked");
	kv_ask_end(a, false);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

int main(void)
{
	log_init("test", 0, LOG_ERROR);
	test_fetch(64);
	test_fetch(128);
	test_late();
	test_prompt();
	test_forged(true);
	test_forged(false);
	test_ending();
	test_writes();
	forget_all();
	return tap_done();
}
