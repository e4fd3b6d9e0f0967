/* RESP: numbers, lines, strings that come in any pieces, replies; slots of clusters. */
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/time.h"
#include "store/redis_impl.h"
#include "tests/unit/feed.h"

/* ---- reading and writing ---- */

static void test_numbers(void)
{
	static const struct { const char *s; bool good; int64_t v; } t[] = {
		{ "0", true, 0 }, { "7", true, 7 }, { "-1", true, -1 }, { "9223372036854775807", true, INT64_MAX },
		{ "-9223372036854775808", true, INT64_MIN }, { "9223372036854775808", false, 0 },
		{ "-9223372036854775809", false, 0 }, { "", false, 0 }, { "-", false, 0 }, { "+1", false, 0 },
		{ " 1", false, 0 }, { "1 ", false, 0 }, { "1x", false, 0 }, { "99999999999999999999999", false, 0 },
	};
	int64_t v;

	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		tap_ok(resp_number(t[i].s, strlen(t[i].s), INT64_MIN, INT64_MAX, &v) == t[i].good &&
			(!t[i].good || v == t[i].v), "number '%s'", t[i].s);
	tap_ok(!resp_number(S("11"), 0, 10, &v) && !resp_number(S("-1"), 0, 10, &v), "numbers out of range");
}

static void test_slots(void)
{
	tap_is_int(redis_slot(S("123456789")), 0x31c3, "the CRC's check value");
	tap_is_int(redis_slot(S("foo")), 12182, "slot of foo, as redis-server says");
	tap_is_int(redis_slot(S("{user1000}.following")), redis_slot(S("user1000")), "a tag is all that counts");
	tap_is_int(redis_slot(S("foo{}{bar}")), 8363, "an empty first tag is none");
	tap_is_int(redis_slot(S("foo{{bar}}zap")), redis_slot(S("{bar")), "the tag ends at the first }");
	tap_is_int(redis_slot(S("foo{bar}{zap}")), redis_slot(S("bar")), "the first tag counts");
	tap_is_int(redis_slot(S("a{b")), 13340, "a tag that does not end is none");
}

/* A connection on whose other end these bytes are written in pieces of so many. */
static struct feed feeding;
static pthread_t feeder;

static void begin(struct resp *r, const char *p, size_t n, size_t piece)
{
	struct ds_err err;
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) || resp_open(r, fd[0], "test", &err))
		tap_bail("no socket");
	feeding = (struct feed){ fd[1], p, n, piece };
	if (pthread_create(&feeder, NULL, feed, &feeding))
		tap_bail("no thread");
}

static void end(struct resp *r)
{
	close(r->fd);
	pthread_join(feeder, NULL);
	close(feeding.fd);
	resp_close(r);
}

static void test_pieces(void)
{
	enum { BIG = 100000 };
	static char all[BIG + 100], big[BIG];
	size_t n = (size_t)snprintf(all, sizeof all, "+OK\r\n$%d\r\n", BIG);
	static const size_t pieces[] = { 1, 2, 3, 7, 1000, 65536, sizeof all };

	for (size_t i = 0; i < BIG; i++)
		all[n + i] = (char)(i * 31 + i / 251);
	memcpy(all + n + BIG, "\r\n:5\r\n", 6);
	for (size_t k = 0; k < ARRAY_LEN(pieces); k++) {
		struct resp_reply a, b, c;
		struct resp r;
		struct ds_err err;
		bool good;

		begin(&r, all, n + BIG + 6, pieces[k]);
		good = !resp_reply(&r, &a, &err) && a.kind == RESP_STATUS && a.len == 2 && !strcmp(a.text, "OK");
		good = good && !resp_reply(&r, &b, &err) && b.kind == RESP_BULK && b.n == BIG;
		memset(big, 0, sizeof big);
		good = good && !resp_bytes(&r, big, BIG, &err) && !memcmp(big, all + n, BIG) && !resp_crlf(&r, &err);
		good = good && !resp_reply(&r, &c, &err) && c.kind == RESP_INT && c.n == 5;
		good = good && resp_reply(&r, &c, &err) == DS_UNAVAILABLE && r.closed;
		tap_ok(good, "replies in pieces of %zu bytes", pieces[k]);
		end(&r);
	}
}

static void test_replies(void)
{
	static const struct { const char *what, *p; size_t n; int rc; } t[] = {
		{ "an array of arrays", S("*2\r\n*2\r\n:1\r\n$3\r\nabc\r\n*-1\r\n"), 0 },
		{ "an empty array", S("*0\r\n"), 0 },
		{ "nil", S("$-1\r\n"), 0 },
		{ "a kind of RESP3", S("%1\r\n+a\r\n+b\r\n"), DS_PROTO },
		{ "nothing", S("\r\n"), DS_PROTO },
		{ "a length of no number", S("$x\r\n"), DS_PROTO },
		{ "a negative length", S("$-2\r\n"), DS_PROTO },
		{ "a string beyond 512 MB", S("$536870913\r\n"), DS_PROTO },
		{ "too many elements", S("*1048577\r\n"), DS_PROTO },
		{ "too many elements, nested", S("*3\r\n*1048576\r\n"), DS_PROTO },
		{ "a string too long for its place", S("*1\r\n$101\r\n"), DS_PROTO },
		{ "a string that does not end in CRLF", S("$3\r\nabcde"), DS_PROTO },
		{ "a string that is cut", S("$3\r\nab"), DS_UNAVAILABLE },
		{ "an array that is cut", S("*2\r\n:1\r\n"), DS_UNAVAILABLE },
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		struct resp_reply reply;
		struct resp r;
		struct ds_err err;
		int rc;

		begin(&r, t[i].p, t[i].n, t[i].n);
		rc = resp_reply(&r, &reply, &err);
		if (!rc)
			rc = resp_reply_skip(&r, &reply, 100, &err);
		tap_is_int(rc, t[i].rc, t[i].what);
		end(&r);
	}
}

static void test_limits(void)
{
	static char line[3 * RESP_LINE_MAX];
	struct resp r;
	struct ds_err err;
	char *p;
	size_t n;

	memset(line, 'x', sizeof line);
	begin(&r, line, sizeof line, sizeof line);
	tap_is_int(resp_line(&r, &p, &n, &err), DS_PROTO, "a line without an end");
	end(&r);
	memcpy(line + RESP_LINE_MAX, "\r\n", 2);
	begin(&r, line, RESP_LINE_MAX + 2, 100);
	tap_ok(!resp_line(&r, &p, &n, &err) && n == RESP_LINE_MAX && !p[n], "the longest line");
	end(&r);
	begin(&r, line, 10, 10);
	r.deadline = time_mono_ns() + 20000000;
	pthread_join(feeder, NULL);
	tap_is_int(resp_skip(&r, 11, &err), DS_UNAVAILABLE, "skipping beyond the end");
	pthread_create(&feeder, NULL, feed, &feeding);
	end(&r);
}

static void test_deadline(void)
{
	static char big[8 << 20];
	struct iovec iov = { big, sizeof big };
	struct resp_reply reply;
	struct resp r;
	struct ds_err err;
	int fd[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) || resp_open(&r, fd[0], "test", &err))
		tap_bail("no socket");
	r.deadline = time_mono_ns() + 30000000;
	tap_is_int(resp_reply(&r, &reply, &err), DS_TEMP, "nothing comes until the deadline");
	r.deadline = time_mono_ns() + 30000000;
	resp_add_cstr(&r, "head");
	rc = resp_send(&r, &iov, 1, &err);
	tap_is_int(rc, DS_TEMP, "nothing is taken until the deadline");
	r.deadline = 0;
	tap_is_int(resp_flush(&r, &err), DS_TEMP, "after half of something was sent the error stays");
	close(fd[0]);
	close(fd[1]);
	resp_close(&r);
}

static void test_send(void)
{
	enum { PIECES = 200, EACH = 5000 };
	static char got[PIECES * EACH + 100], want[sizeof got], bytes[EACH];
	struct iovec iov[PIECES];
	struct feed f = { 0 };
	struct resp r;
	struct ds_err err;
	pthread_t t;
	size_t n = 0;
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) || resp_open(&r, fd[0], "test", &err))
		tap_bail("no socket");
	n += (size_t)snprintf(want, sizeof want, "$3\r\nabc\r\n*2\r\n");
	for (size_t i = 0; i < EACH; i++)
		bytes[i] = (char)(i * 7);
	for (size_t i = 0; i < PIECES; i++) { /* many of them empty */
		iov[i] = (struct iovec){ bytes, i % 3 || i > 150 ? 0 : i * 31 };
		memcpy(want + n, bytes, iov[i].iov_len);
		n += iov[i].iov_len;
	}
	f = (struct feed){ fd[1], got, n, 0 };
	pthread_create(&t, NULL, drain, &f);
	resp_add_bulk(&r, "abc", 3);
	resp_add_head(&r, '*', 2);
	tap_ok(!resp_send(&r, iov, PIECES, &err), "many pieces are sent");
	pthread_join(t, NULL);
	tap_ok(f.piece == n && !memcmp(got, want, n), "as they should be");
	close(fd[0]);
	close(fd[1]);
	resp_close(&r);
}

int main(void)
{
	signal(SIGPIPE, SIG_DFL); /* nothing may raise it */
	test_numbers();
	test_slots();
	test_pieces();
	test_replies();
	test_limits();
	test_deadline();
	test_send();
	return tap_done();
}
