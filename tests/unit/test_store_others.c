/* Two stores on one directory, as two processes have it; and descriptors, rights and room that are lacking. */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/stores.h"

static struct two { const char *path; struct store *a, *b; struct store_session *sa, *sb; } t;

static void open_two(const char *name, const struct store_options *o)
{
	t.path = store_path(name);
	t.a = store_at(t.path, o);
	t.b = store_at(t.path, o);
	t.sa = session_of(t.a);
	t.sb = session_of(t.b);
}

static void close_two(void)
{
	store_end(t.sa);
	store_end(t.sb);
	store_close(t.a);
	store_close(t.b);
	store_rm(t.path);
}

static int put_as(struct store_session *ss, uint64_t n, size_t size, uint64_t version)
{
	enum store_put_result r;
	struct ds_err err = { 0 };
	int rc = put_n(ss, n, size, &(struct put_how){ .replace = true, .version = version }, &r, &err);

	if (rc)
		tap_diag("put: %s", err.text);
	return rc;
}

static bool del_n(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	struct ds_err err = { 0 };
	bool was;

	return !store_del(ss, &k, &was, &err) && was;
}

/* The version of item n that a reader of the file finds; -1: none. */
static int version_at(struct store_session *ss, uint64_t n, size_t size)
{
	struct store_key k = key_of(n);
	struct store_ref ref;
	struct ds_err err;
	uint8_t p[64], want[64 + 8];
	int v = -1;

	if (ss->store->ops->find(ss, &k, &ref, &err))
		return -1;
	for (int i = 0; i < 32 && v < 0; i++) {
		fill_item(want, sizeof p, n, (uint64_t)i);
		if (pread(ref.fd, p, sizeof p, (off_t)(ref.offset + ref.head_bytes)) == sizeof p &&
			!memcmp(p, want, size < sizeof p ? size : sizeof p))
			v = i;
	}
	ss->store->ops->release(ss, &ref);
	return v;
}

static void coherent(void)
{
	int seen = 0, at = 0, was = 0;

	open_two("coherent", &(struct store_options){ 0 });
	for (uint64_t n = 0; n < 10; n++) {
		has_n(t.sb, 1000 + n); /* B has looked just now */
		put_as(t.sa, n, 500, 1);
		put_as(t.sb, n, 500, 2);
		at += version_at(t.sa, n, 500) == 2;
		seen += get_n(t.sa, n, 500, 2) == GET_RIGHT && get_n(t.sb, n, 500, 2) == GET_RIGHT;
	}
	tap_is_int(seen, 10, "what another replaces is seen at once");
	tap_is_int(at, 10, "and by who finds it in the file");
	for (uint64_t n = 20; n < 30; n++) {
		has_n(t.sb, 1000 + n);
		put_as(t.sa, n, 500, 1);
		was += del_n(t.sb, n) && get_n(t.sa, n, 500, 1) == GET_MISS;
	}
	tap_is_int(was, 10, "what one has just put is deleted by the other");
	close_two();
}

/* The fault: from a file that another had removed, which was still open here, what had been replaced and deleted since
 * was read on for seconds. */
static void removed(void)
{
	struct store_options o = { .capacity = 1 << 20, .segment = 64 << 10 };
	enum store_put_result r;
	struct ds_err err = { 0 };
	size_t wrong = 0;

	open_two("removed", &o);
	wrong += put_as(t.sa, 1, 500, 1) != 0;
	wrong += put_as(t.sa, 2, 500, 1) != 0;
	wrong += put_as(t.sa, 3, 500, 1) != 0;
	for (uint64_t n = 0; n < 12; n++) /* that segment is complete, and a long way from the youngest */
		wrong += put_as(t.sa, 100 + n, 20000, 1) != 0;
	wrong += get_n(t.sa, 1, 500, 1) != GET_RIGHT;
	for (uint64_t n = 0; n < 80; n++)
		wrong += put_as(t.sb, 200 + n, 20000, 1) != 0;
	tap_ok(!wrong && !has_n(t.sb, 1), "one store makes room by what the other has put");
	put_as(t.sb, 1, 500, 2);
	tap_is_int(get_n(t.sa, 1, 500, 2), GET_RIGHT, "which sees what is put anew,");
	tap_is_int(version_at(t.sa, 3, 500), -1, "and not what is gone,");
	tap_ok(!put_n(t.sa, 2, 500, NULL, &r, &err) && r == STORE_STORED && get_n(t.sa, 2, 500, 0) == GET_RIGHT,
		"nor takes it for there already");
	close_two();
}

static rlim_t files_at_most(rlim_t n)
{
	struct rlimit r;
	rlim_t was;

	getrlimit(RLIMIT_NOFILE, &r);
	was = r.rlim_cur;
	r.rlim_cur = n;
	setrlimit(RLIMIT_NOFILE, &r);
	return was;
}

static void blind(void)
{
	enum store_put_result r;
	struct ds_err err;
	rlim_t was;
	bool got;

	open_two("blind", &(struct store_options){ 0 });
	has_n(t.sb, 99);
	put_n(t.sa, 1, 5000, NULL, &r, &err);
	usleep(2200000); /* the directory changed long ago */
	was = files_at_most(3);
	get_n(t.sb, 1, 5000, 0);
	usleep(60000);
	get_n(t.sb, 1, 5000, 0);
	files_at_most(was);
	usleep(60000);
	got = get_n(t.sb, 1, 5000, 0) == GET_RIGHT;
	tap_ok(got, "a look that lacked descriptors is done again");
	close_two();
}

static void pins(void)
{
	struct store_options o = { .capacity = 4 << 20, .segment = 128 << 10 };
	struct store_key k[3] = { key_of(0), key_of(1), key_of(2) };
	struct store_session *other;
	enum store_put_result r;
	struct ds_err err = { 0 };
	int there = 0;

	open_two("pins", &o);
	other = session_of(t.a);
	put_as(t.sa, 50, 100, 1);
	k[0] = key_of(50);
	store_pin(t.sa, k, 1, true, &err);
	put_as(t.sa, 50, 10000, 2);
	store_pin(other, k, 1, true, &err);
	store_pin(t.sa, k, 1, false, &err);
	store_pin(other, k, 1, false, &err);
	tap_is_int((long long)stat_of(t.sa).pinned_bytes, 0, "bytes that are pinned come to nothing again");
	store_end(other);
	k[0] = key_of(0);
	for (uint64_t n = 0; n < 3; n++)
		put_n(t.sa, n, 20000, NULL, &r, &err);
	usleep(60000);
	tap_ok(has_n(t.sb, 0) && has_n(t.sb, 2) && !store_pin(t.sb, k, 3, true, &err),
		"items of a segment that another writes are pinned");
	for (uint64_t n = 100; n < 700; n++)
		put_n(t.sa, n, 20000, NULL, &r, &err);
	for (uint64_t n = 0; n < 3; n++)
		there += get_n(t.sb, n, 20000, 0) == GET_RIGHT && has_n(t.sa, n);
	tap_is_int(there, 3, "and are there when it was complete and others went");
	store_pin(t.sb, k, 3, false, &err);
	for (uint64_t n = 700; n < 1300; n++)
		put_n(t.sa, n, 20000, NULL, &r, &err);
	tap_ok(get_n(t.sa, 2, 20000, 0) == GET_MISS, "until they are not pinned");
	close_two();
}

/* Files that may only be read. */
static void rights(void)
{
	const char *path = store_path("rights");
	struct store *s = store_at(path, &(struct store_options){ 0 });
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err = { 0 };
	struct store_key k = key_of(1);
	char cmd[2000];
	bool was;

	put_n(ss, 1, 1000, NULL, &r, &err);
	store_end(ss);
	store_close(s);
	snprintf(cmd, sizeof cmd,
		"chmod 777 '%s' && cd '%s' && chmod 666 lock && chmod 644 format && chmod 444 *.seg *.idx",
		path, path);
	if (system(cmd))
		tap_bail("chmod");
	if (!geteuid() && seteuid(65534))
		tap_bail("seteuid");
	s = store_at(path, &(struct store_options){ 0 });
	ss = session_of(s);
	tap_ok(store_del(ss, &k, &was, &err) == DS_IO && !was && strstr(err.text, "cannot delete"),
		"what cannot be overwritten is not said to be deleted");
	tap_ok(get_n(ss, 1, 1000, 0) == GET_RIGHT, "it is there");
	tap_ok(put_n(ss, 1, 1000, &(struct put_how){ .replace = true, .version = 3 }, &r, &err) == DS_IO &&
		get_n(ss, 1, 1000, 0) == GET_RIGHT, "nor is it replaced");
	store_end(ss);
	store_close(s);
	if (!getuid() && seteuid(0))
		tap_bail("seteuid");
	store_rm(path);
}

/* Frames of items that are alive, in all segments. */
static int alive(const char *path)
{
	static uint8_t p[1 << 20];
	char names[64][64], file[700];
	int n = 0;

	for (int i = store_files(path, ".seg", names, 64); i-- > 0;) {
		FILE *f;
		size_t have;

		snprintf(file, sizeof file, "%s/%.63s", path, names[i]);
		f = fopen(file, "rb");
		have = f ? fread(p, 1, sizeof p, f) : 0;
		if (f)
			fclose(f);
		for (size_t at = 0; at + 64 <= have; at += 64)
			n += !memcmp(p + at, "\x9a\xa4" "DSF1\xcc", 7) && p[at + 7] == FRAME_STORE;
	}
	return n;
}

static void over(void)
{
	struct put_how soon = { .ttl_ns = 300000000 };
	enum store_put_result r;
	struct ds_err err;

	open_two("over", &(struct store_options){ 0 });
	for (uint64_t n = 0; n < 4; n++)
		put_n(t.sa, n, 2000, &soon, &r, &err);
	tap_is_int(alive(t.path), 4, "four that are soon over");
	usleep(400000);
	tap_ok(get_n(t.sa, 0, 2000, 0) == GET_MISS && alive(t.path) == 3, "over within its second: gone on disk");
	usleep(1000000);
	tap_ok(get_n(t.sa, 1, 2000, 0) == GET_MISS && alive(t.path) == 2, "one later");
	tap_ok(!del_n(t.sa, 2) && alive(t.path) == 1, "one that was to be deleted");
	put_as(t.sa, 3, 2000, 1);
	tap_is_int(alive(t.path), 1, "one that was replaced");
	close_two();
}

static void sizes(void)
{
	struct store_options o = { .capacity = 1 << 20, .segment = 8 << 20 };
	const char *path = store_path("sizes");
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err = { 0 };
	int n = 0;

	for (uint64_t i = 0; i < 100; i++)
		n += !put_n(ss, i, 30000, NULL, &r, &err);
	tap_ok(n == 100 && stat_of(ss).bytes <= 1 << 20, "segments that are larger than the store are made smaller");
	store_end(ss);
	store_close(s);
	o = (struct store_options){ .capacity = 1000 };
	tap_ok(store_dir.open(&s, path, &o, &err) == DS_USAGE && strstr(err.text, "the least is 65536"),
		"a store that could hold nothing is refused");
	o = (struct store_options){ .capacity = 512 << 10 };
	s = store_at(path, &o);
	ss = session_of(s);
	tap_ok(stat_of(ss).bytes <= 512 << 10, "a smaller capacity holds from the beginning");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

static void count_lines(void *ctx, const char *line)
{
	*(int *)ctx += strstr(line, "no files are passed over") != NULL;
}

static int count_items(void *ctx, const struct store_item *item, const char *segment, uint64_t offset,
	struct ds_err *err)
{
	(void)item, (void)segment, (void)offset, (void)err;
	++*(int *)ctx;
	return 0;
}

static void odd(void)
{
	const char *path = store_path("odd");
	struct store *s = store_at(path, &(struct store_options){ 0 });
	struct store_session *ss = session_of(s);
	struct dir_report r;
	enum store_put_result how;
	struct ds_err err;
	char name[700];
	int lines = 0, items = 0;

	put_n(ss, 1, 1000, NULL, &how, &err);
	store_end(ss);
	store_close(s);
	snprintf(name, sizeof name, "%s/s-0000000000000001-0000000000000001.seg", path);
	mkdir(name, 0777);
	tap_ok(!dir_verify(path, count_lines, &lines, &r, &err) && lines == 1 && r.items == 1,
		"a directory that is named like a segment is passed over");
	tap_ok(!dir_list(path, count_items, &items, &err) && items == 1, "in lists, too");
	s = store_at(path, &(struct store_options){ 0 });
	ss = session_of(s);
	tap_ok(get_n(ss, 1, 1000, 0) == GET_RIGHT && stat_of(ss).segments == 1, "and by stores");
	store_end(ss);
	store_close(s);
	rmdir(name);
	store_rm(path);
}

/* Files of segments that were read make room for those that are needed now. */
static void descriptors(void)
{
	struct store_options o = { .segment = 64 << 10 };
	const char *path = store_path("descriptors");
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	enum store_put_result r;
	struct ds_err err = { 0 };
	int top, n = 0, got = 0;
	rlim_t was;

	for (uint64_t i = 0; i < 20; i++)
		put_n(ss, i, 50000, NULL, &r, &err);
	for (uint64_t i = 0; i < 20; i++)
		get_n(ss, i, 50000, 0);
	top = open("/dev/null", O_RDONLY);
	close(top);
	was = files_at_most((rlim_t)top);
	for (uint64_t i = 20; i < 40; i++)
		n += !put_n(ss, i, 50000, NULL, &r, &err);
	for (uint64_t i = 0; i < 40; i++)
		got += get_n(ss, i, 50000, 0) == GET_RIGHT;
	files_at_most(was);
	tap_is_int(n, 20, "with no descriptor left, segments are made all the same");
	tap_is_int(got, 40, "and read");
	tap_is_int(store_files(path, ".idx", NULL, 0), 39, "and have their files beside them");
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* A full store: what has nothing alive goes first, though it is the youngest, then there is room for the others. */
static void gc_full(void)
{
	struct store_options o = { .segment = 64 << 10 };
	const char *path = store_path("gc_full");
	struct store *s = store_at(path, &o);
	struct store_session *ss = session_of(s);
	struct dir_report r;
	enum store_put_result how;
	struct ds_err err = { 0 };
	int dead = 0, there = 0;

	for (uint64_t n = 0; n < 30; n++) /* six in a segment */
		put_n(ss, n, 10000, NULL, &how, &err);
	for (uint64_t n = 0; n < 30; n++)
		dead += (n >= 24 || n % 6 == 0) && del_n(ss, n);
	o.capacity = stat_of(ss).bytes + 1000;
	store_end(ss);
	store_close(s);
	tap_ok(dead == 10 && !dir_gc(path, &o, NULL, NULL, &r, &err) && r.items == 20 && r.dead_bytes > 80000,
		"gc of a store that is full");
	s = store_at(path, &o);
	ss = session_of(s);
	for (uint64_t n = 0; n < 24; n++)
		there += get_n(ss, n, 10000, 0) == GET_RIGHT;
	tap_is_int(there, 20, "loses nothing");
	store_end(ss);
	store_close(s);
	o.capacity = 1 << 20;
	tap_ok(!dir_gc(path, &o, NULL, NULL, &r, &err) && r.items == 20, "and what is left has room elsewhere");
	store_rm(path);
}

int main(void)
{
	gc_full();
	coherent();
	removed();
	blind();
	pins();
	rights();
	over();
	sizes();
	odd();
	descriptors();
	return tap_done();
}
