/* Frames through memory files, for the tests of lib/frame. */
#ifndef DS_TESTS_FRAMES_H
#define DS_TESTS_FRAMES_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frame/frame.h"
#include "frame/hello.h"
#include "tap.h"

/* A descriptor from which n bytes can be read. */
TAP_USED static int fd_of(const void *p, size_t n)
{
	int fd = memfd_create("frames", MFD_CLOEXEC);

	if (fd < 0 || write(fd, p, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET) != 0)
		tap_bail("memfd");
	return fd;
}

/* All that was written to fd; the caller frees. */
TAP_USED static uint8_t *bytes_of(int fd, size_t *n)
{
	struct stat st;
	uint8_t *p;

	if (fstat(fd, &st) || !(p = malloc((size_t)st.st_size + 1)) ||
		pread(fd, p, (size_t)st.st_size, 0) != st.st_size)
		tap_bail("memfd");
	*n = (size_t)st.st_size;
	return p;
}

/* A capture with every kind of frame there is to cut and damage: hello, a request, two kv with payloads, a frame with
 * a long meta, an end.  The caller frees. */
TAP_USED static uint8_t *sample_of(size_t *n, size_t payload, bool packed)
{
	struct hello h = { .program = "ds-test", .version = "0.1", .role = "test", .model = "m", .vocab = 512,
		.kv = { DT_BF16, 64, 3, 576 } };
	const uint64_t shape[2] = { 2, payload / 8 };
	int fd = memfd_create("sample", MFD_CLOEXEC);
	struct meta_builder *b = meta_new();
	float *data = malloc(payload);
	struct frame_writer *w;
	struct ds_err err;
	struct iovec iov = { data, payload };
	char text[300];
	int rc;

	if (fd < 0 || !b || !data || frame_writer_new(&w, fd, "sample", &err))
		tap_bail("no memory");
	for (size_t i = 0; i < payload / 4; i++)
		data[i] = (float)i * 0.5f - 3.0f;
	hello_put(b, &h);
	rc = frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, &err);
	for (unsigned i = 0; i < 2 && !rc; i++) {
		meta_reset(b);
		meta_put_uint(b, "first", i * 64);
		meta_put_uint(b, "count", 64);
		meta_put_tensor(b, "kv", DT_F32, "row,dim", shape, 2, 0, NULL);
		rc = frame_write(
			w, FRAME_TENSOR, i && packed ? FRAME_ZSTD : 0, 0x1234567890abcdefu, b, &iov, 1, true, &err);
	}
	memset(text, 'x', sizeof text);
	meta_reset(b);
	meta_put_str(b, "text", text, sizeof text);
	if (!rc)
		rc = frame_write(w, FRAME_TEXT, 0, 7, b, NULL, 0, false, &err);
	if (!rc)
		rc = frame_write_end(w, &err);
	if (rc)
		tap_bail("%s", err.text);
	frame_writer_free(w);
	meta_free(b);
	free(data);
	{
		uint8_t *p = bytes_of(fd, n);

		close(fd);
		return p;
	}
}

TAP_USED static uint8_t *sample(size_t *n, size_t payload)
{
	return sample_of(n, payload, true);
}

/* Reads a whole stream; the first error's code, or 0 after END; how many frames came whole. */
TAP_USED static int read_all(int fd, uint64_t max, unsigned *frames, struct ds_err *err)
{
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	unsigned n = 0;
	int rc = frame_reader_new(&r, fd, "t", max, err);

	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, err);
		n += !rc && ev == FRAME_BODY;
		if (!rc && ev == FRAME_BODY)
			rc = frame_check_payload(f, err);
	}
	frame_reader_free(r);
	if (frames)
		*frames = n;
	return rc;
}

/* A stream that has its hello; frames_look ends it. */
TAP_USED static struct frame_writer *frames_begin(int *fd)
{
	struct hello h = { .program = "test", .version = "0" };
	struct meta_builder *b = meta_new();
	struct frame_writer *w;
	struct ds_err err;

	*fd = memfd_create("frames", MFD_CLOEXEC);
	hello_put(b, &h);
	if (frame_writer_new(&w, *fd, "m", &err) || frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, &err))
		tap_bail("%s", err.text);
	meta_free(b);
	return w;
}

/* Ends the stream and reads it back; look() sees each frame of that type while it is valid. */
TAP_USED static void frames_look(struct frame_writer *w, int fd, unsigned type,
	void (*look)(const struct frame *f, void *ctx), void *ctx)
{
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;

	if (frame_write_end(w, &err) || lseek(fd, 0, SEEK_SET) || frame_reader_new(&r, fd, "m", 0, &err))
		tap_bail("%s", err.text);
	while (!frame_reader_next(r, &ev, &f, &err) && ev != FRAME_EOF)
		if (ev == FRAME_BODY && f->type == type)
			look(f, ctx);
	if (ev != FRAME_EOF)
		tap_bail("%s", err.text);
	frame_reader_free(r);
	frame_writer_free(w);
	close(fd);
}

#endif
