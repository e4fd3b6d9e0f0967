/*
 * Whole stores that are copied: what is damaged is left out and said to be; of two values of a name the later one
 * stays.  And things in a store's directory that have names of its files but are no files.
 */
#include <unistd.h>

#include "tests/unit/stores.h"

enum { ITEMS = 40, SIZE = 3000 };

static void build(const char *path)
{
	struct store_options o = { .segment = 64 << 10 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err;
	size_t wrong = 0;

	for (uint64_t i = 0; i < ITEMS; i++)
		wrong += put_n(ss, i, SIZE, NULL, &r, &err) != 0;
	for (uint64_t i = 0; i < ITEMS; i += 4) {
		struct store_key k = key_of(i);
		bool was;

		wrong += store_del(ss, &k, &was, &err) != 0;
	}
	tap_ok(!wrong, "a store of %d items, a quarter of them deleted", ITEMS);
	store_end(ss);
	store_close(s);
}

/* ---- damage ---- */

struct where { struct store_key key; char segment[64]; uint64_t offset; bool found; };

static int find(void *ctx, const struct store_item *item, const char *segment, uint64_t offset, struct ds_err *err)
{
	struct where *w = ctx;

	(void)err;
	if (store_key_equal(&item->key, &w->key)) {
		snprintf(w->segment, sizeof w->segment, "%s", segment);
		w->offset = offset;
		w->found = true;
	}
	return 0;
}

/* One byte of an item, so far from where it begins. */
static void damage(const char *path, uint64_t n, uint64_t at)
{
	struct where w = { .key = key_of(n) };
	struct ds_err err;
	char file[600];
	uint8_t byte;
	int fd;

	if (dir_list(path, find, &w, &err) || !w.found)
		tap_bail("item %d is not there", (int)n);
	snprintf(file, sizeof file, "%s/%s", path, w.segment);
	fd = open(file, O_RDWR);
	if (fd < 0 || pread(fd, &byte, 1, (off_t)(w.offset + at)) != 1)
		tap_bail("cannot read %s", file);
	byte ^= 16;
	if (pwrite(fd, &byte, 1, (off_t)(w.offset + at)) != 1)
		tap_bail("cannot write %s", file);
	close(fd);
}

static int export_to(const char *path, const char *file, struct dir_copied *c)
{
	struct ds_err err = { 0 };
	int fd = exported(path, file, c, &err);

	if (!c->items)
		tap_bail("export: %s", err.text);
	return fd;
}

static int lines;

static void told(void *ctx, const char *line)
{
	(void)ctx;
	lines += strstr(line, ".seg: byte ") != NULL;
}

static void test_damaged(void)
{
	const char *path = store_path("damaged");
	struct store_options o = { 0 };
	struct dir_report r;
	struct dir_copied c;
	struct ds_err err;
	char file[600];

	build(path);
	damage(path, 1, 60);         /* its front */
	damage(path, 18, SIZE / 2);  /* payloads */
	damage(path, 30, SIZE / 2);
	snprintf(file, sizeof file, "%s.frames", path);
	close(export_to(path, file, &c));
	unlink(file);
	tap_is_int((long long)c.items, ITEMS * 3 / 4 - 3, "export writes what is sound");
	tap_is_int((long long)c.left_out, 3, "and says how many it left out");
	tap_ok(!dir_gc(path, &o, told, NULL, &r, &err), "gc goes on where items are damaged");
	tap_is_int((long long)r.bad_items, 3, "it counts them");
	tap_is_int(lines, 3, "says of each in which file and where");
	tap_is_int((long long)r.items, ITEMS * 3 / 4 - 3, "and keeps the others");
	tap_ok(!dir_verify(path, NULL, NULL, &r, &err) && !r.bad_items, "then nothing is wrong any more");
	store_rm(path);
}

/* ---- two values of a name ---- */

static void put_value(const char *path, uint64_t version, uint64_t ttl_ns)
{
	struct store_options o = { 0 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct meta_builder *b = meta_new();
	struct put_how how = { .replace = true, .version = version, .ttl_ns = ttl_ns, .meta = b };
	enum store_put_result r;
	struct ds_err err;

	meta_put_bin(b, "name", "k", 1);
	if (put_n(ss, 1, SIZE, &how, &r, &err))
		tap_bail("put: %s", err.text);
	meta_free(b);
	store_end(ss);
	store_close(s);
}

static enum get_result value_is(const char *path, uint64_t version)
{
	struct store_options o = { 0 };
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum get_result r = get_n(ss, 1, SIZE, version);

	store_end(ss);
	store_close(s);
	return r;
}

static void import_from(const char *from, const char *to, struct dir_copied *c)
{
	struct store_options o = { 0 };
	struct dir_copied exported;
	struct ds_err err;
	char file[600];
	int fd;

	snprintf(file, sizeof file, "%s.frames", from);
	fd = export_to(from, file, &exported);
	if (dir_import(to, &o, fd, file, c, &err))
		tap_bail("import: %s", err.text);
	close(fd);
	unlink(file);
}

static void test_later(void)
{
	const char *first = store_path("first"), *second = store_path("second");
	struct dir_copied c;

	put_value(first, 1, (uint64_t)1000 * 1000000000);
	put_value(second, 2, 0);
	import_from(second, first, &c);
	tap_ok(c.items == 1 && !c.already, "a value that was put later replaces the one that is there");
	tap_is_int(value_is(first, 2), GET_RIGHT, "and is there then");
	import_from(second, first, &c);
	tap_ok(!c.items && c.already == 1, "once");
	put_value(first, 3, 0);
	import_from(second, first, &c);
	tap_ok(!c.items && c.already == 1, "one that was put earlier does not");
	tap_is_int(value_is(first, 3), GET_RIGHT, "the later one is there");
	store_rm(first);
	store_rm(second);
}

/* ---- no files ---- */

/* The name of a file of the store, which goes. */
static void make_way(const char *path, const char *name, char file[700])
{
	char idx[1][64];

	if (strcmp(name, "idx") == 0 && store_files(path, ".idx", idx, 1) < 1)
		tap_bail("no .idx");
	snprintf(file, 700, "%s/%s", path, strcmp(name, "idx") == 0 ? idx[0] : name);
	unlink(file);
}

/* Whatever comes of it, it comes at once. */
static void use(const char *path)
{
	struct store_options o = { 0 };
	struct put_how how = { .sync = true };
	struct store_session *ss;
	enum store_put_result r;
	struct dir_report report;
	char addr[600];
	struct ds_err err;
	struct store *s;

	alarm(20);
	snprintf(addr, sizeof addr, "dir:%s", path);
	dir_verify(path, NULL, NULL, &report, &err);
	if (!store_open(&s, addr, &o, &err)) {
		ss = session_of(s);
		put_n(ss, 100, SIZE, &how, &r, &err);
		store_end(ss);
		store_close(s);
	}
	alarm(0);
}

static void test_no_files(void)
{
	static const char *const names[] = { "format", "lock", "sync", "capacity", "capacity.new", "idx" };
	static const char *const kinds[] = { "a FIFO", "a directory", "a link to a device" };
	const char *path = store_path("odd");

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (int kind = 0; kind < 3; kind++) {
			char file[700];

			store_rm(path);
			build(path);
			make_way(path, names[i], file);
			if (kind == 0 ? mkfifo(file, 0666) :
				kind == 1 ? mkdir(file, 0777) : symlink("/dev/zero", file))
				tap_bail("cannot make %s", file);
			use(path);
			tap_ok(true, "%s as %s holds nobody", names[i], kinds[kind]);
			if (kind == 1)
				rmdir(file);
		}
	store_rm(path);
}

/* The fault: gc looked at compressed bytes as if they were what was put, and dropped all of them. */
static void test_compressed(void)
{
	enum { ALL = 30, BYTES = 10000 };
	struct store_options o = { .zstd = true, .segment = 1 << 20 };
	const char *path = store_path("compressed");
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	static uint8_t p[BYTES];
	struct iovec iov = { p, BYTES };
	enum store_put_result r;
	struct dir_report rep;
	struct ds_err err;
	size_t bad = 0, there = 0;
	bool was;

	for (uint64_t n = 0; n < ALL; n++)
		bad += store_put(ss, &(struct store_put){ .key = key_of(n), .iov = &iov, .iovs = 1 }, &r, &err) != 0;
	bad += stat_of(ss).bytes > ALL * BYTES / 2;
	for (uint64_t n = 0; n < ALL; n += 3)
		bad += store_del(ss, &(struct store_key[]){ key_of(n) }[0], &was, &err) != 0;
	store_end(ss);
	store_close(s);
	tap_ok(!bad && !dir_gc(path, &o, NULL, NULL, &rep, &err) && rep.items == ALL * 2 / 3 && !rep.bad_items,
		"gc keeps what is compressed: %d of %d items", (int)rep.items, ALL * 2 / 3);
	s = store_at(path, &o);
	ss = session_of(s);
	for (uint64_t n = 0; n < ALL; n++) {
		struct one one = { 0 };
		struct store_sink sink = { &one, one_place, one_done };
		size_t got;

		there += !store_get(ss, &(struct store_key[]){ key_of(n) }[0], 1, &sink, &got, &err) && got &&
			one.size == BYTES && !memcmp(one.p, p, BYTES);
		free(one.p);
	}
	tap_is_int((long long)there, ALL * 2 / 3, "and it is what was put");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

int main(void)
{
	test_compressed();
	test_damaged();
	test_later();
	test_no_files();
	return tap_done();
}
