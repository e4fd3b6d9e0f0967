/* A store in a directory, by one process: what is put is got, deleted, replaced, expires, is found again. */
#include "tests/unit/stores.h"

static void basics(void)
{
	const char *path = store_path("basics");
	struct store_options o = { .capacity = 64 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;
	size_t sizes[] = { 0, 1, 63, 64, 65, 1000, 70000, 300000, 4497408 }, bad = 0;
	struct store_stat st;
	bool was;

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (put_n(ss, i, sizes[i], NULL, &r, &err) || r != STORE_STORED) {
			tap_diag("%s", err.text);
			bad++;
		}
	tap_is_int((long long)bad, 0, "items of all sizes are stored");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (get_n(ss, i, sizes[i], 0) != GET_RIGHT)
			bad++;
	tap_is_int((long long)bad, 0, "and are what they were");
	tap_ok(!put_n(ss, 3, 64, NULL, &r, &err) && r == STORE_ALREADY, "what is there is not stored again");
	tap_ok(get_n(ss, 100, 5, 0) == GET_MISS && !has_n(ss, 100), "what is not there is a miss");
	tap_ok(has_n(ss, 5), "has says what is there");
	struct store_key k = key_of(5);
	tap_ok(!store_del(ss, &k, &was, &err) && was && !has_n(ss, 5), "what is deleted is not there");
	tap_ok(!store_del(ss, &k, &was, &err) && !was, "deleting it again says so");
	for (uint64_t v = 1; v < 4; v++)
		if (put_n(ss, 6, 70000, &(struct put_how){ .replace = true, .version = v }, &r, &err) || r != STORE_STORED ||
			get_n(ss, 6, 70000, v) != GET_RIGHT)
			bad++;
	tap_is_int((long long)bad, 0, "what is replaced is the new one");
	st = stat_of(ss);
	tap_ok(st.items == sizeof sizes / sizeof *sizes - 1 && st.bytes <= st.capacity, "stat counts them");
	store_end(ss);
	store_close(s);

	s = store_at(path, &o);
	ss = session_of(s);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		if (get_n(ss, i, sizes[i], i == 6 ? 3 : 0) != (i == 5 ? GET_MISS : GET_RIGHT)) {
			tap_diag("item %zu", i);
			bad++;
		}
	tap_is_int((long long)bad, 0, "all is there after it was opened again");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* Far more than fits: the capacity holds, what is asked for stays, what is read is right. */
static void eviction(void)
{
	const char *path = store_path("eviction");
	struct store_options o = { .capacity = 8 << 20 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct store_stat st;
	struct ds_err err;
	size_t over = 0, wrong = 0, failed = 0, kept = 0, size = 20000;

	for (uint64_t i = 0; i < 4000; i++) {
		if (put_n(ss, i, size, NULL, &r, &err)) {
			tap_diag("%s", err.text);
			failed++;
		}
		for (uint64_t j = 0; j < 20 && i % 10 == 0; j++)
			wrong += get_n(ss, j, size, 0) == GET_WRONG;
		wrong += get_n(ss, random_bits(5, i) % (i + 1), size, 0) == GET_WRONG;
		st = stat_of(ss);
		over += st.bytes > st.capacity;
	}
	for (uint64_t j = 0; j < 20; j++)
		kept += has_n(ss, j);
	tap_is_int((long long)failed, 0, "every item is stored");
	tap_is_int((long long)over, 0, "the files are never more than the capacity");
	tap_is_int((long long)wrong, 0, "nothing that is read is wrong");
	tap_is_int((long long)kept, 20, "what is asked for all the time stays");
	tap_diag("items %llu bytes %llu evicted %llu moved %llu segments %llu", (unsigned long long)st.items, (unsigned long long)st.bytes,
		(unsigned long long)st.evicted, (unsigned long long)st.moved_bytes, (unsigned long long)st.segments);
	store_end(ss);
	store_close(s);
	store_rm(path);
}

int main(void)
{
	basics();
	eviction();
	return tap_done();
}
