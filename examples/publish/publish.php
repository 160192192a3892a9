<?php
// Publishes a message: php publish.php TOPIC TEXT

function publish(string $topic, mixed $data): string {
    $api = getenv('THRONG_API') ?: 'http://127.0.0.1:8001';
    $response = file_get_contents("$api/api/publish", false, stream_context_create(['http' => [
        'method' => 'POST',
        'header' => ['Authorization: Bearer ' . getenv('THRONG_API_KEY'), 'Content-Type: application/json'],
        'content' => json_encode(['topic' => $topic, 'data' => $data], JSON_THROW_ON_ERROR),
        'timeout' => 10,
    ]]));
    if ($response === false) throw new RuntimeException('the message is not published');
    return json_decode($response, flags: JSON_THROW_ON_ERROR)->id;
}

echo publish($argv[1], $argv[2]), "\n";
