-- A table that rejects writes with a token lower than the stored token.
CREATE TABLE report (
    id    integer PRIMARY KEY,
    body  text NOT NULL,
    -- All tokens have the same length. Compared byte by byte as text, they have the order of their numbers.
    token text COLLATE "C" NOT NULL
);
INSERT INTO report VALUES (1, '', '');

-- Writes the report. An equal token is allowed, so that a holder can write several times.
CREATE FUNCTION write_report(new_body text, new_token text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE stored_token text;
BEGIN
    UPDATE report SET body = new_body, token = new_token WHERE id = 1 AND token <= new_token;
    IF NOT FOUND THEN
        SELECT token INTO stored_token FROM report WHERE id = 1;
        RAISE EXCEPTION 'write rejected: a newer holder has stored token %', stored_token;
    END IF;
END $$;

-- Stores the token and returns the body. From then on, write_report rejects writes of earlier holders.
CREATE FUNCTION claim_report(new_token text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE stored_body text;
BEGIN
    UPDATE report SET token = new_token WHERE id = 1 AND token <= new_token RETURNING body INTO stored_body;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'claim rejected: a newer holder has stored its token';
    END IF;
    RETURN stored_body;
END $$;
