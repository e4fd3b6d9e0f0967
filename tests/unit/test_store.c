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
		if (put_n(ss, 6, 70000, &(struct put_how){ .replace = true, .version = v }, &r, &err) ||
			r != STORE_STORED ||
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
	tap_diag("items %llu bytes %llu evicted %llu moved %llu segments %llu", (unsigned long long)st.items,
		(unsigned long long)st.bytes,
		(unsigned long long)st.evicted, (unsigned long long)st.moved_bytes, (unsigned long long)st.segments);
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* Programs read segments as the streams that they are. */
static bool frames_like(const char *path)
{
	char command[1500];

	snprintf(command, sizeof command,
		"for f in '%s'/*.seg; do '%s/bin/ds-frame' check \"$f\" >/dev/null || exit 1; done",
		path, tap_build());
	return system(command) == 0;
}

/* Values of a kind that shrinks: BF16 numbers of about one size. */
static int put_soft(struct store_session *ss, uint64_t n, size_t size, bool get)
{
	uint8_t *p = malloc(size);
	struct iovec iov = { p, size };
	struct store_put put = { .key = key_of(n), .iov = &iov, .iovs = 1, .element = 2 };
	struct one o = { 0 };
	struct store_sink sink = { &o, one_place, one_done };
	enum store_put_result r;
	struct ds_err err;
	size_t got = 0;
	int bad;

	for (size_t i = 0; i < size; i++)
		p[i] = i % 2 ? 0x3f : (uint8_t)random_bits(n, i);
	if (!get) {
		bad = store_put(ss, &put, &r, &err) || r != STORE_STORED;
	} else {
		bad = store_get(ss, &put.key, 1, &sink, &got, &err) || !got || o.size != size ||
			memcmp(o.p, p, size) != 0;
		free(o.p);
	}
	free(p);
	return bad;
}

static void compressed(void)
{
	const char *path = store_path("zstd");
	struct store_options o = { .zstd = true };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	size_t sizes[] = { 2, 1000, 1001, 65536, 300001 }, bad = 0;
	enum store_put_result r;
	struct ds_err err;
	bool was;

	for (size_t i = 0; i < 5; i++)
		bad += put_soft(ss, i, sizes[i], false);
	bad += put_n(ss, 100, 50000, NULL, &r, &err) != 0;
	tap_ok(!bad && stat_of(ss).put_bytes > 400000, "items are stored compressed");
	for (size_t i = 0; i < 5; i++)
		bad += put_soft(ss, i, sizes[i], true);
	tap_ok(!bad && get_n(ss, 100, 50000, 0) == GET_RIGHT, "and are what they were");
	struct store_key k = key_of(2);
	store_del(ss, &k, &was, &err);
	store_end(ss);
	store_close(s);
	s = store_at(path, &(struct store_options){ .read_only = true });
	ss = session_of(s);
	tap_ok(stat_of(ss).bytes < 300000 && stat_of(ss).items == 5, "in fewer bytes");
	tap_ok(store_put(ss, &(struct store_put){ .key = k }, &r, &err) == DS_USAGE,
		"one that is read only takes nothing");
	store_end(ss);
	store_close(s);
	tap_ok(frames_like(path), "ds-frame check finds the segments right, with what was deleted");
	store_rm(path);
}

/* Times, admission, pins, what does not fit. */
static void rules(void)
{
	const char *path = store_path("rules");
	struct store_options o = { .capacity = 2 << 20, .admission = STORE_ADMIT_SECOND };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct store_key k = key_of(1), many[40];
	enum store_put_result r;
	struct ds_err err;
	size_t bad = 0;

	tap_ok(!put_n(ss, 1, 5000, NULL, &r, &err) && r == STORE_NOT_ADMITTED && !has_n(ss, 1),
		"the first time it is not stored");
	tap_ok(!put_n(ss, 5, 5000, &(struct put_how){ .replace = true }, &r, &err) && r == STORE_NOT_ADMITTED &&
		!put_n(ss, 5, 5000, &(struct put_how){ .replace = true }, &r, &err) && r == STORE_STORED &&
		!put_n(ss, 5, 5000, &(struct put_how){ .replace = true, .version = 2 }, &r, &err) &&
		r == STORE_STORED && get_n(ss, 5, 5000, 2) == GET_RIGHT,
		"nor what may replace another; but what does is");
	tap_ok(!put_n(ss, 6, 5000, &(struct put_how){ .exact = true }, &r, &err) && r == STORE_STORED &&
		!put_n(ss, 6, 5000, &(struct put_how){ .exact = true }, &r, &err) && r == STORE_ALREADY,
		"and what its putter goes by");
	tap_ok(!put_n(ss, 1, 5000, NULL, &r, &err) && r == STORE_STORED && has_n(ss, 1), "the second time it is");
	store_end(ss);
	store_close(s);
	o.admission = STORE_ADMIT_ALL;
	s = store_at(path, &o);
	ss = session_of(s);
	tap_ok(!put_n(ss, 2, 5000, &(struct put_how){ .ttl_ns = 1 }, &r, &err) && !has_n(ss, 2) &&
		get_n(ss, 2, 5000, 0) == GET_MISS, "what has expired is not there");
	tap_ok(!put_n(ss, 2, 5000, &(struct put_how){ .ttl_ns = 3600000000000 }, &r, &err) && r == STORE_STORED &&
		has_n(ss, 2),
		"what will expire is");
	tap_ok(put_n(ss, 3, 3 << 20, NULL, &r, &err) == DS_TEMP, "what is larger than the store is refused: %s",
		err.text);
	tap_ok(!put_n(ss, 4, 1 << 20, NULL, &r, &err) && get_n(ss, 4, 1 << 20, 0) == GET_RIGHT, "half of it is not");
	tap_ok(!store_pin(ss, &k, 1, true, &err), "an item is pinned");
	for (uint64_t i = 100; i < 1000; i++)
		bad += put_n(ss, i, 5000, NULL, &r, &err) != 0;
	tap_ok(!bad && get_n(ss, 1, 5000, 0) == GET_RIGHT && !has_n(ss, 100), "it stays when all else goes");
	for (uint64_t i = 0; i < 40; i++) {
		put_n(ss, 2000 + i, 40000, NULL, &r, &err);
		many[i] = key_of(2000 + i);
	}
	tap_ok(store_pin(ss, many, 40, true, &err) == DS_TEMP, "not everything can be pinned: %s", err.text);
	for (uint64_t i = 3000; i < 3500; i++)
		bad += put_n(ss, i, 5000, NULL, &r, &err) != 0;
	tap_ok(!bad, "the rest is used on");
	store_end(ss);
	ss = session_of(s);
	tap_is_int((long long)stat_of(ss).pinned_bytes, 0, "pins end with their session");
	store_end(ss);
	store_close(s);
	tap_ok(frames_like(path), "ds-frame check finds the segments right");
	store_rm(path);
}

/* later: under a name as if it were made in another age. */
static void carry(const char *from, const char *to, bool later)
{
	char names[4][64], a[700], b[700];

	for (int i = store_files(from, ".seg", names, 4); i-- > 0;) {
		snprintf(a, sizeof a, "%s/%.63s", from, names[i]);
		names[i][2] = later ? '7' : names[i][2];
		snprintf(b, sizeof b, "%s/%.63s", to, names[i]);
		if (rename(a, b))
			tap_bail("cannot rename %s", a);
	}
}

/* A key that is there twice, as a process leaves it that is killed while it replaces an item. */
static void twice(bool older_last)
{
	char path[500], other[500];
	struct store_key k = key_of(1);
	enum store_put_result r;
	struct store_session *ss;
	struct ds_err err;
	struct store *s;
	bool was;

	snprintf(path, sizeof path, "%s", store_path("twice"));
	snprintf(other, sizeof other, "%s", store_path("twice2"));
	for (uint64_t v = 1; v <= 2; v++) {
		s = store_at((v == 1) == older_last ? other : path, &(struct store_options){ 0 });
		ss = session_of(s);
		put_n(ss, 1, 3000, &(struct put_how){ .version = v }, &r, &err);
		put_n(ss, 10 + v, 3000, NULL, &r, &err);
		store_end(ss);
		store_close(s);
	}
	carry(other, path, older_last);
	s = store_at(path, &(struct store_options){ 0 });
	ss = session_of(s);
	tap_ok(get_n(ss, 1, 3000, 2) == GET_RIGHT && get_n(ss, 11, 3000, 0) == GET_RIGHT &&
		get_n(ss, 12, 3000, 0) == GET_RIGHT,
		"of two items with one key the younger one is found");
	tap_ok(!store_del(ss, &k, &was, &err) && was, "it is deleted");
	store_end(ss);
	store_close(s);
	s = store_at(path, &(struct store_options){ 0 });
	ss = session_of(s);
	tap_ok(get_n(ss, 1, 3000, 1) == GET_MISS && get_n(ss, 11, 3000, 0) == GET_RIGHT &&
		get_n(ss, 12, 3000, 0) == GET_RIGHT,
		"and the older one does not come back");
	store_end(ss);
	store_close(s);
	store_rm(path);
	store_rm(other);
}

static void no_store(void)
{
	const char *path = store_path("none");
	struct store_options o = { .read_only = true };
	char addr[600], file[600];
	struct store *s;
	struct ds_err err;
	FILE *f;

	snprintf(addr, sizeof addr, "dir:%s", path);
	snprintf(file, sizeof file, "%s/mine", path);
	tap_is_int(store_open(&s, addr, &o, &err), DS_NOINPUT, "what is not there cannot be read");
	mkdir(path, 0777);
	tap_is_int(store_open(&s, addr, &o, &err), DS_DATA, "an empty directory is no store");
	f = fopen(file, "w");
	fclose(f);
	tap_is_int(store_open(&s, addr, &(struct store_options){ 0 }, &err), DS_CONFIG,
		"somebody's directory is not made one");
	tap_diag("%s", err.text);
	store_rm(path);
}

struct listed { size_t n; };
static int list_one(void *ctx, const struct store_item *item, const char *segment, uint64_t offset, struct ds_err *err)
{
	struct listed *l = ctx;

	(void)segment, (void)offset, (void)err;
	l->n += item->size == 3000;
	return 0;
}

static void say(void *ctx, const char *line)
{
	(void)ctx;
	tap_diag("%s", line);
}

static void moved_house(const char *path, const struct store_options *o)
{
	struct dir_copied c;
	struct store_session *ss;
	struct ds_err err = { 0 };
	char other[500], file[600];
	struct store *s;
	size_t bad = 0;
	int fd;

	snprintf(other, sizeof other, "%s", store_path("other"));
	snprintf(file, sizeof file, "%s.frames", other);
	fd = exported(path, file, &c, &err);
	tap_ok(c.items == 199 && !c.left_out, "export writes all: %s", err.text);
	tap_ok(!dir_import(other, o, fd, file, &c, &err) && c.items == 199 && !c.already,
		"import reads them");
	lseek(fd, 0, SEEK_SET);
	tap_ok(!dir_import(other, o, fd, file, &c, &err) && !c.items && c.already == 199,
		"and knows them again");
	lseek(fd, 0, SEEK_SET);
	tap_ok(!ftruncate(fd, 100000) && dir_import(other, o, fd, file, &c, &err) == DS_DATA,
		"a stream that is cut is said to be: %s", err.text);
	close(fd);
	unlink(file);
	s = store_at(other, o);
	ss = session_of(s);
	for (uint64_t i = 0; i < 300; i++)
		bad += get_n(ss, i, 3000, 0) != (i % 3 == 0 || i == 7 ? GET_MISS : GET_RIGHT);
	tap_is_int((long long)bad, 0, "what was imported is what was put");
	store_end(ss);
	store_close(s);
	store_rm(other);
}

/* What ds-kvstore does to a directory: list, verify, gc, export, import. */
static void tools(void)
{
	char path[500];
	struct store_options o = { .capacity = 8 << 20 };
	struct store_session *ss;
	enum store_put_result r;
	struct dir_report rep;
	struct listed l = { 0 };
	struct ds_err err = { 0 };
	struct store *s;
	size_t bad = 0;
	struct meta_builder *b = meta_new();
	uint64_t dead;
	bool was;

	snprintf(path, sizeof path, "%s", store_path("tools"));
	s = store_at(path, &o);
	ss = session_of(s);
	meta_put_cstr(b, "name", "of the item");
	for (uint64_t i = 0; i < 300; i++)
		bad += put_n(ss, i, 3000, &(struct put_how){ .meta = b, .ttl_ns = i == 7 ? 1 : 0 }, &r, &err) != 0;
	for (uint64_t i = 0; i < 300; i += 3) {
		struct store_key k = key_of(i);

		bad += store_del(ss, &k, &was, &err) || !was;
	}
	tap_is_int((long long)bad, 0, "items are stored and some deleted");
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && rep.items == 199, "a store in use is verified");
	store_end(ss);
	store_close(s);
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && rep.items == 199 && !rep.torn_bytes && !rep.bad_indices &&
		rep.dead_bytes > 300000, "and after it");
	tap_ok(!dir_list(path, list_one, &l, &err) && l.n == 199, "list has what is alive");
	s = store_at(path, &(struct store_options){ .read_only = true });
	tap_ok(!dir_dead(s, &dead, &err) && dead > 300000, "it is known how much is dead: %llu bytes",
		(unsigned long long)dead);
	store_close(s);
	tap_ok(!dir_gc(path, &o, NULL, NULL, &rep, &err) && rep.items == 199 && rep.dead_bytes == dead,
		"gc gives up what is dead: %s", err.text);
	s = store_at(path, &(struct store_options){ .read_only = true });
	tap_ok(!dir_dead(s, &dead, &err) && !dead, "and then nothing is");
	store_close(s);
	tap_ok(!dir_verify(path, say, NULL, &rep, &err) && rep.items == 199 && !rep.dead_bytes, "which is gone then");
	moved_house(path, &o);
	meta_free(b);
	store_rm(path);
}

int main(void)
{
	basics();
	eviction();
	tools();
	compressed();
	rules();
	twice(true);
	twice(false);
	no_store();
	return tap_done();
}
